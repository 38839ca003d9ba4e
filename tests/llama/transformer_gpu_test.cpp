// The whole model on a GPU against the reference: losses and every gradient; what is computed again
// gives the same bits.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "device_values.hpp"
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

/// One forward and backward; what is in the gradients is added to where `accumulate` says so.
template <class T>
double run(llama::Transformer<T>& transformer, const OnDevice<T>& at, const ref::Shape& shape,
           const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
           bool accumulate) {
  const std::size_t norm = ref::final_norm(shape);
  const std::size_t head = ref::head(shape);
  transformer.upload(tokens.data(), targets.data());
  transformer.embed_forward(at.weights[0]->data());
  for (std::size_t l = 0; l < shape.layers; ++l) transformer.layer_forward(l, at.layer(l));
  transformer.head_forward_backward(
      {at.weights[norm]->data(), at.weights[head]->data()},
      {{at.gradients[norm]->data(), accumulate}, {at.gradients[head]->data(), accumulate}},
      1.0f / static_cast<float>(tokens.size()));
  for (std::size_t l = shape.layers; l-- > 0;) {
    transformer.layer_backward(l, at.layer(l), at.layer_gradients(l, accumulate));
  }
  transformer.embed_backward({at.gradients[0]->data(), accumulate || shape.tied});
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
