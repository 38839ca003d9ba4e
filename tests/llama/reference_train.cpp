// Trains the reference Llama on a text and writes its losses, for the trainers on GPUs and in other
// frameworks to be compared with. With -DLLAMA_REFERENCE_BLAS and -lopenblas products are BLAS's:
//
//     g++ -std=c++20 -O3 -march=native -DLLAMA_REFERENCE_BLAS -I include
//         tests/llama/reference_train.cpp -o reference_train -lopenblas
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <ios>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference.hpp"
#include "reference/adamw.hpp"
#include "reference/text_batches.hpp"

namespace {

using llama_reference::AdamWOptions;
using llama_reference::AdamWState;
using llama_reference::KeepPrecision;
using llama_reference::LlamaReference;
using llama_reference::Parameter;
using llama_reference::RoundToBf16;
using llama_reference::Shape;
using llama_reference::TextBatches;

constexpr const char* kUsage = R"(usage: reference_train --text FILE [options]
  --layers N --dim N --ff N --heads N --kv N --vocab N   sizes (2, 64, 128, 4, 2, 256)
  --tied                                                 the head is the token embedding
  --seq N --batch N --steps N                            (64, 4, 100)
  --lr X --seed N --dtype fp32|bf16                      (1e-3, 1, fp32)
  --json FILE                                            where the losses go
  --dump-weights FILE                                    the first values, as little-endian fp32
)";

struct Options {
  Shape shape;
  std::size_t seq = 64;
  std::size_t batch = 4;
  std::size_t steps = 100;
  std::uint64_t seed = 1;
  float learning_rate = 1e-3f;
  bool bf16 = false;
  std::string text;
  std::string json;
  std::string weights;
};

std::uint64_t whole_number(const std::string& name, const std::string& value) {
  if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos) {
    throw std::invalid_argument(name + " takes a whole number, not '" + value + "'");
  }
  return std::stoull(value);
}

Options parse(int argc, char** argv) {
  Options o;
  const std::map<std::string, std::size_t*> sizes{{"--layers", &o.shape.layers},
                                                  {"--dim", &o.shape.dim},
                                                  {"--ff", &o.shape.ff},
                                                  {"--heads", &o.shape.heads},
                                                  {"--kv", &o.shape.kv_heads},
                                                  {"--vocab", &o.shape.vocab},
                                                  {"--seq", &o.seq},
                                                  {"--batch", &o.batch},
                                                  {"--steps", &o.steps}};
  const std::map<std::string, std::string*> files{
      {"--text", &o.text}, {"--json", &o.json}, {"--dump-weights", &o.weights}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--tied") {
      o.shape.tied = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument(name + " is unknown, or lacks its value");
    const std::string value = argv[++i];
    if (const auto size = sizes.find(name); size != sizes.end()) {
      *size->second = whole_number(name, value);
    } else if (const auto file = files.find(name); file != files.end()) {
      *file->second = value;
    } else if (name == "--seed") {
      o.seed = whole_number(name, value);
    } else if (name == "--lr") {
      o.learning_rate = std::stof(value);
    } else if (name == "--dtype" && (value == "fp32" || value == "bf16")) {
      o.bf16 = value == "bf16";
    } else {
      throw std::invalid_argument("cannot make sense of " + name + " " + value);
    }
  }
  if (const char* problem = o.shape.problem()) throw std::invalid_argument(problem);
  if (o.text.empty()) throw std::invalid_argument("--text is missing");
  return o;
}

void finish(std::ofstream& file, const std::string& path) {
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

void write_weights(const std::string& path, const std::vector<std::vector<float>>& weights) {
  std::ofstream file(path, std::ios::binary);
  for (const std::vector<float>& tensor : weights) {
    file.write(reinterpret_cast<const char*>(tensor.data()),
               static_cast<std::streamsize>(tensor.size() * sizeof(float)));
  }
  finish(file, path);
}

void write_losses(const std::string& path, const std::vector<double>& losses) {
  std::ofstream file(path);
  file.precision(std::numeric_limits<double>::max_digits10);
  file << "{\"losses\": [";
  for (std::size_t i = 0; i < losses.size(); ++i) file << (i == 0 ? "" : ", ") << losses[i];
  file << "]}\n";
  finish(file, path);
}

/// The loss of each step, before its update.
template <class Round>
std::vector<double> train(const Options& o, const TextBatches& text) {
  LlamaReference<float, Round> model(o.shape, o.seed);
  const std::vector<Parameter>& description = model.description();

  // The master weights begin as the parameters: as those are stored.
  std::vector<std::vector<float>> masters = model.parameters();
  if (!o.weights.empty()) write_weights(o.weights, masters);
  std::vector<AdamWState> states;
  for (const Parameter& p : description) states.emplace_back(p.size(), !p.is_norm());
  AdamWOptions adamw;
  adamw.learning_rate = o.learning_rate;

  std::vector<double> losses;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t step = 0; step < o.steps; ++step) {
    const std::vector<std::uint32_t> tokens = text.tokens(step);
    const std::vector<std::uint32_t> targets = text.targets(step);
    losses.push_back(model.forward(tokens, targets, o.batch));
    model.backward();

    const double norm = llama_reference::global_norm(model.gradients());
    if (!std::isfinite(norm)) throw std::runtime_error("the gradient is not finite");
    const float clip = llama_reference::clip_factor(norm, adamw.clip_norm);
    for (std::size_t id = 0; id < description.size(); ++id) {
      states[id].update(adamw, static_cast<int>(step + 1), clip, model.gradients()[id].data(),
                        masters[id].data());
      model.parameters()[id] = masters[id];
      llama_reference::store<Round>(model.parameters()[id]);
    }

    if ((step + 1) % 20 == 0 || step == 0 || step + 1 == o.steps) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      std::printf("step %zu  loss %.6f  gradient norm %.4f  %.1f s\n", step + 1, losses.back(),
                  norm, spent.count());
      std::fflush(stdout);
    }
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 1 || std::string(argv[1]) == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const Options o = parse(argc, argv);
  const TextBatches text(TextBatches::read(o.text), o.batch, o.seq);
  if (text.largest_token() >= o.shape.vocab) {
    throw std::invalid_argument("the text has bytes beyond the vocabulary");
  }
  const std::vector<double> losses =
      o.bf16 ? train<RoundToBf16>(o, text) : train<KeepPrecision>(o, text);
  if (!o.json.empty()) write_losses(o.json, losses);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "reference_train: %s\n", error.what());
  return 1;
}
