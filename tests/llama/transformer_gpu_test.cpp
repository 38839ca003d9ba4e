// The whole model on a GPU against the reference: losses and every gradient; what is computed again
// gives the same bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "batches.hpp"
#include "device_values.hpp"
#include "documents.hpp"
#include "reference.hpp"
#include "transformer.hpp"

using namespace llama_test;
namespace ref = llama_reference;
using tessera::bf16;

namespace {

constexpr std::size_t kBatch = 2;
constexpr std::size_t kSequence = 72;

llama::Config config_of(bool tied) {
  return {.layers = 3,
          .dim = 384,
          .ff = 200,
          .heads = 6,
          .kv_heads = 2,
          .vocabulary = 136,
          .tied = tied};
}
ref::Shape shape_of(const llama::Config& c) {
  ref::Shape shape;
  shape.layers = c.layers;
  shape.dim = c.dim;
  shape.ff = c.ff;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.vocab = c.vocabulary;
  shape.tied = c.tied;
  return shape;
}

/// Weights and gradients on the device, in the order of the reference's parameters.
template <class T>
struct OnDevice {
  std::vector<std::unique_ptr<Device<T>>> weights, gradients;

  template <class Reference>
  explicit OnDevice(Reference& reference) {
    for (const auto& values : reference.parameters()) {
      std::vector<T> narrowed;
      for (const auto value : values) narrowed.push_back(narrow<T>(static_cast<double>(value)));
      weights.push_back(std::make_unique<Device<T>>(narrowed));
      gradients.push_back(std::make_unique<Device<T>>(values.size()));
    }
  }
  llama::LayerWeights<T> layer(std::size_t l) const {
    const std::size_t at = ref::first_of_layer(l);
    return {weights[at]->data(),     weights[at + 1]->data(), weights[at + 2]->data(),
            weights[at + 3]->data(), weights[at + 4]->data(), weights[at + 5]->data()};
  }
  llama::LayerGradients<T> layer_gradients(std::size_t l, bool accumulate) const {
    const std::size_t at = ref::first_of_layer(l);
    const auto of = [&](std::size_t i) {
      return llama::Gradient<T>{gradients[at + i]->data(), accumulate};
    };
    return {of(0), of(1), of(2), of(3), of(4), of(5)};
  }
};

/// One forward and backward, but for the loss.
template <class T>
void enqueue(llama::Transformer<T>& transformer, const OnDevice<T>& at, const ref::Shape& shape,
             const std::int32_t* tokens, const std::int32_t* targets, std::size_t rows,
             bool accumulate, const std::int32_t* documents) {
  const std::size_t norm = ref::final_norm(shape);
  const std::size_t head = ref::head(shape);
  transformer.upload(tokens, targets, documents);
  transformer.embed_forward(at.weights[0]->data());
  for (std::size_t l = 0; l < shape.layers; ++l) transformer.layer_forward(l, at.layer(l));
  transformer.head_forward_backward(
      {at.weights[norm]->data(), at.weights[head]->data()},
      {{at.gradients[norm]->data(), accumulate}, {at.gradients[head]->data(), accumulate}},
      1.0f / static_cast<float>(rows));
  for (std::size_t l = shape.layers; l-- > 0;) {
    transformer.layer_backward(l, at.layer(l), at.layer_gradients(l, accumulate));
  }
  transformer.embed_backward({at.gradients[0]->data(), accumulate || shape.tied});
}

/// One forward and backward; what is in the gradients is added to where `accumulate` says so.
template <class T>
double run(llama::Transformer<T>& transformer, const OnDevice<T>& at, const ref::Shape& shape,
           const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
           bool accumulate) {
  enqueue(transformer, at, shape, tokens.data(), targets.data(), tokens.size(), accumulate,
          nullptr);
  double loss = 0;
  transformer.take_loss(&loss);
  llama::require(cudaStreamSynchronize(cudaStreamPerThread), "the model");
  return loss / static_cast<double>(tokens.size());
}

template <class T>
using Oracle = std::conditional_t<std::is_same_v<T, float>, ref::LlamaReference<double>,
                                  ref::LlamaReference<double, ref::RoundToBf16>>;

}  // namespace

TEST_CASE_TEMPLATE("losses and gradients are the reference's, whatever is computed again", T, float,
                   bf16) {
  for (const bool tied : {false, true}) {
    const llama::Config config = config_of(tied);
    const ref::Shape shape = shape_of(config);
    Oracle<T> oracle(shape, 3);
    const OnDevice<T> device(oracle);
    const ref::Tokens tokens = ref::random_tokens(kBatch * kSequence, 1, config.vocabulary);
    const ref::Tokens targets = ref::random_tokens(kBatch * kSequence, 2, config.vocabulary);
    const double expected = oracle.forward(tokens, targets, kBatch);
    oracle.backward();
    const std::vector<std::int32_t> in(tokens.begin(), tokens.end());
    const std::vector<std::int32_t> out(targets.begin(), targets.end());

    llama::TransformerOptions options;
    options.deterministic = true;
    options.tuning.measured = false;
    std::vector<std::vector<T>> first;
    using llama::Recompute;
    const std::vector<Recompute> choices[] = {
        std::vector<Recompute>(3, Recompute::nothing),
        std::vector<Recompute>(3, Recompute::elementwise),
        std::vector<Recompute>(3, Recompute::block),
        {Recompute::block, Recompute::elementwise, Recompute::nothing}};
    for (const auto& choice : choices) {
      llama::Transformer<T> transformer(config, kBatch, kSequence, options, cudaStreamPerThread);
      transformer.allocate(choice);
      const double loss = run(transformer, device, shape, in, out, false);
      const bool narrow = std::is_same_v<T, bf16>;
      CHECK(loss == doctest::Approx(expected).epsilon(narrow ? 2e-3 : 1e-6));
      for (std::size_t id = 0; id < oracle.gradients().size(); ++id) {
        CAPTURE(oracle.description()[id].name);
        const auto& values = oracle.gradients()[id];
        const Doubles wanted(values.begin(), values.end());
        CHECK(error(device.gradients[id]->doubles(), wanted) < (narrow ? 0.04 : 3e-5));
        const std::vector<T> bits = device.gradients[id]->host();
        if (first.size() <= id) first.push_back(bits);
        CHECK(std::memcmp(first[id].data(), bits.data(), bits.size() * sizeof(T)) == 0);
      }
      // Once more on top: twice the gradients.
      const double again = run(transformer, device, shape, in, out, true);
      CHECK(again == loss);
      for (std::size_t id = 0; id < oracle.gradients().size(); ++id) {
        Doubles twice;
        for (const T value : first[id]) twice.push_back(2.0 * widen(value));
        CHECK(error(device.gradients[id]->doubles(), twice) < (narrow ? 0.01 : 3e-6));
      }
    }
  }
}

TEST_CASE("the recomputation that is chosen fits the budget, and is the least") {
  const llama::Config config = config_of(false);
  llama::TransformerOptions options;
  options.tuning.measured = false;
  llama::Transformer<bf16> transformer(config, kBatch, kSequence, options, cudaStreamPerThread);
  using llama::Recompute;
  const std::vector<Recompute> least(3, Recompute::block), most(3, Recompute::nothing);
  CHECK(transformer.choose(transformer.bytes(least) - 1).empty());
  CHECK(transformer.choose(transformer.bytes(least)) == least);
  CHECK(transformer.choose(transformer.bytes(most)) == most);
  const auto between = transformer.choose((transformer.bytes(least) + transformer.bytes(most)) / 2);
  CHECK(transformer.bytes(between) <= (transformer.bytes(least) + transformer.bytes(most)) / 2);
  CHECK(between != least);
}

TEST_CASE_TEMPLATE("with documents losses and gradients are the reference's, replayed too", T,
                   float, bf16) {
  constexpr std::uint32_t kEnd = 5;
  constexpr std::size_t kRows = kBatch * kSequence;
  constexpr std::size_t kDocuments = 40;
  const llama::Config config = config_of(false);
  const ref::Shape shape = shape_of(config);
  Oracle<T> oracle(shape, 3);
  const OnDevice<T> device(oracle);
  llama::TransformerOptions options;
  options.deterministic = true;
  options.documents = kDocuments;
  options.tuning.measured = false;
  llama::Transformer<T> transformer(config, kBatch, kSequence, options, cudaStreamPerThread);
  transformer.allocate(std::vector<llama::Recompute>(3, llama::Recompute::block));

  // Where a captured upload finds the batch of each replay.
  const llama::Pinned<std::int32_t> in(kRows), out(kRows), starts(kDocuments + 1);
  const llama::Pinned<double> sum(1);
  ref::Tokens tokens, targets;
  std::size_t count = 0;
  const auto fill = [&](std::uint64_t batch) {
    // Few kinds of tokens, so that many end a document.
    tokens = ref::random_tokens(kRows, 2 * batch + 1, 12);
    targets = ref::random_tokens(kRows, 2 * batch + 2, config.vocabulary);
    std::copy(tokens.begin(), tokens.end(), in.get());
    std::copy(targets.begin(), targets.end(), out.get());
    count =
        llama::write_document_starts({in.get(), kRows}, kSequence, static_cast<std::int32_t>(kEnd),
                                     {starts.get(), kDocuments + 1});
    REQUIRE(count > 2 * kBatch);
  };
  const auto step = [&] {
    enqueue(transformer, device, shape, in.get(), out.get(), kRows, false, starts.get());
    transformer.take_loss(sum.get());
  };
  const auto check = [&] {
    CAPTURE(count);
    llama::require(cudaStreamSynchronize(cudaStreamPerThread), "the model");
    const std::vector<std::size_t> first_rows = ref::document_of_rows(tokens, kSequence, kEnd);
    const double expected = oracle.forward(tokens, targets, kBatch, first_rows);
    oracle.backward();
    const bool narrow = std::is_same_v<T, bf16>;
    CHECK(*sum.get() / kRows == doctest::Approx(expected).epsilon(narrow ? 2e-3 : 1e-6));
    for (std::size_t id = 0; id < oracle.gradients().size(); ++id) {
      CAPTURE(oracle.description()[id].name);
      const auto& values = oracle.gradients()[id];
      const Doubles wanted(values.begin(), values.end());
      CHECK(error(device.gradients[id]->doubles(), wanted) < (narrow ? 0.04 : 3e-5));
    }
  };
  for (const std::uint64_t batch : {1u, 2u}) {
    fill(batch);
    step();
    check();
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  llama::require(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal),
                 "a capture");
  step();
  llama::require(cudaStreamEndCapture(cudaStreamPerThread, &graph), "a capture");
  llama::require(cudaGraphInstantiate(&executable, graph, 0), "a graph");
  for (const std::uint64_t batch : {3u, 4u}) {
    fill(batch);
    llama::require(cudaGraphLaunch(executable, cudaStreamPerThread), "a replay");
    check();
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("a batch brings documents where the options say so, and only there") {
  llama::TransformerOptions options;
  options.tuning.measured = false;
  const std::vector<std::int32_t> tokens(kBatch * kSequence), starts{0, 72, 144};
  llama::Transformer<float> without(config_of(false), kBatch, kSequence, options,
                                    cudaStreamPerThread);
  CHECK_THROWS_AS(without.upload(tokens.data(), tokens.data(), starts.data()),
                  std::invalid_argument);
  options.documents = 2;
  llama::Transformer<float> with(config_of(false), kBatch, kSequence, options, cudaStreamPerThread);
  CHECK_THROWS_AS(with.upload(tokens.data(), tokens.data()), std::invalid_argument);
}
