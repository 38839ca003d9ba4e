#include "program.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "input_error.hpp"
#include "sampler.hpp"

namespace gpt {
namespace {

/// Found out before the training, not after it.
void require_writable(const std::string& path) {
  if (path.empty()) return;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) throw InputError("cannot write to " + path + ".");
  std::fclose(file);
}

/// By whatever names and links: what is written must not be what is read or written besides.
void require_other(const std::string& file, const char* flag, const std::string& other,
                   const char* its_flag) {
  std::error_code none;  // one that does not exist, or is not given, is no other's
  if (file.empty() || other.empty() || !std::filesystem::equivalent(file, other, none)) return;
  throw InputError(std::string(flag) + " and " + its_flag + " must not name the same file.");
}

void describe(const Options& options, const Text& text) {
  const Config& m = options.model;
  std::printf("%s: %zu bytes, %zu of them for validation\n", text.origin().c_str(),
              text.all().size(), text.validation().size());
  std::printf("%zu parameters: %zu layers, %zu heads, width %zu, context %zu; %zu ranks%s\n",
              m.parameters(), m.layers, m.heads, m.width, m.context, options.ranks,
              options.mesh.shard == options.mesh.size()
                  ? ""
                  : (": " + options.mesh.describe() +
                     (options.sequence_parallel ? ", sequence parallel" : ""))
                        .c_str());
  std::fflush(stdout);
}

int run(int argc, char** argv, const Machine& machine, Train fp32, Train bf16) {
  const std::optional<Options> options = parse_options(argc, argv, machine);
  if (!options) return 0;
  const Text text =
      options->data.empty() ? text_from_project(GPT_SOURCE_DIR) : text_from_file(options->data);
  text.require_context(options->model.context);
  require_other(options->json, "--json", options->data, "--data");
  require_other(options->trace, "--trace", options->data, "--data");
  if (machine.first) {
    require_writable(options->json);
    require_writable(options->trace);  // then both exist, and can be told apart
    require_other(options->json, "--json", options->trace, "--trace");
    describe(*options, text);
  }

  Results results;
  results.ranks = options->ranks;
  results.mesh = options->mesh;
  results.steps = options->steps;
  results.memory.resize(options->ranks);
  Traces traces(options->ranks);
  const auto train = options->precision == PrecisionName::fp32 ? fp32 : bf16;
  train(*options, text, results, traces);
  if (!machine.first) return 0;

  if (!results.sample.empty()) {
    std::printf("\nsample:\n%s\n", printable(results.sample).c_str());
  }
  print_tables(results);
  if (!options->json.empty()) write_json(results, options->json);
  if (!options->trace.empty() && !tessera::write_chrome_trace(options->trace, traces)) {
    throw InputError("cannot write the trace to " + options->trace + ".");
  }
  std::printf("\n");
  if (options->steps > 0) {
    std::printf("loss %.4f -> %.4f, validation loss %.4f, %.0f tokens/s, %.1f s\n",
                results.first_loss, results.last_loss, results.val_loss, results.tokens_per_s,
                results.seconds);
  } else {
    std::printf("no steps: validation loss %.4f\n", results.val_loss);
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv, const Machine& machine, Train fp32, Train bf16) {
  try {
    return run(argc, argv, machine, fp32, bf16);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace gpt
