// Trains a Llama-3 model on GPUs: see options.hpp for what it takes, README for how to build it.
#include <cstdio>
#include <exception>
#include <optional>

#include "cuda_check.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "ranks.hpp"
#include "results.hpp"
#include "spawn.hpp"
#include "tokens.hpp"
#include "train.hpp"

namespace llama {
namespace {

void train(const Options& options, const TokenFile* file, Ranks* processes, Results& results,
           Traces& traces) {
  if (options.plain) return train_plain(options, file, results);
  switch (options.precision) {
    case PrecisionName::fp32: return train_fp32(options, file, processes, results, traces);
    case PrecisionName::bf16: return train_bf16(options, file, processes, results, traces);
    case PrecisionName::lean_bf16:
      return train_lean_bf16(options, file, processes, results, traces);
    case PrecisionName::split_bf16:
      return train_split_bf16(options, file, processes, results, traces);
    case PrecisionName::split_bf16_sum32:
      return train_split_bf16_sum32(options, file, processes, results, traces);
    case PrecisionName::pure_bf16:
      return train_pure_bf16(options, file, processes, results, traces);
  }
}

tessera::NcclOptions nccl_options(TransportName transport) {
  tessera::NcclOptions options;
  switch (transport) {
    case TransportName::automatic: break;
    case TransportName::peer: options.transport = tessera::NcclTransport::peer_copies; break;
    case TransportName::windows:
      options.symmetric_windows = true;
      options.cta_policy = NCCL_CTA_POLICY_ZERO;
      [[fallthrough]];
    case TransportName::kernels: options.transport = tessera::NcclTransport::nccl; break;
  }
  return options;
}

void run(Options options) {
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess) {
    throw InputError(std::string("there is no GPU to train on: ") + cudaGetErrorString(status));
  }
  std::optional<Ranks> processes;
  if (options.processes) {
    processes.emplace(tessera::Nccl::from_environment(nccl_options(options.transport)));
    options.ranks = static_cast<std::size_t>(processes->size());
  }
  std::optional<TokenFile> file;
  if (!options.data.empty()) {
    file.emplace(options.data, options.format.value_or(TokenFile::format_of(options.data)));
    file->check(options.model.vocabulary, options.sequence);
  }
  Results results;
  Traces traces;
  train(options, file ? &*file : nullptr, processes ? &*processes : nullptr, results, traces);
  if (processes && processes->rank() != 0) return;
  print_summary(options, results);
  if (!options.json.empty()) write_json(options, results);
  if (!options.trace.empty() && !tessera::write_chrome_trace(options.trace, traces)) {
    throw InputError("cannot write the trace to " + options.trace + ".");
  }
}

}  // namespace
}  // namespace llama

int main(int argc, char** argv) {
  try {
    std::optional<llama::Options> options = llama::parse_options(argc, argv);
    if (!options) return 0;
    if (options->spawn > 0) {
      if (tessera::Nccl::launched()) {
        throw llama::InputError("--spawn starts ranks, and this is one that a launcher started.");
      }
      if (const std::optional<int> ended = llama::spawn_ranks(options->spawn)) return *ended;
    }
    options->processes = tessera::Nccl::launched();
    if (options->processes && options->plain) {
      throw llama::InputError("--plain is one rank, and a launcher started several.");
    }
    if (options->processes && options->ranks > 1) {
      throw llama::InputError(
          "--ranks are threads of one process, and a launcher started several.");
    }
    llama::run(*options);
    return 0;
  } catch (const llama::InputError& error) {
    std::fprintf(stderr, "llama: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama: %s\n", error.what());
    return 1;
  }
}
