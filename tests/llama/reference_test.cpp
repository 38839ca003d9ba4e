// The whole model: its gradients against differences of its loss, in double.
#include "reference.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/differences.hpp"

namespace {

using llama_reference::dot;
using llama_reference::Doubles;
using llama_reference::LlamaReference;
using llama_reference::random_tokens;
using llama_reference::random_values;
using llama_reference::Shape;
using llama_reference::slope;
using llama_reference::Tokens;

constexpr double kTolerance = 1e-9;

}  // namespace

TEST_CASE("llama reference: every parameter's gradient is the loss's slope") {
  for (const Shape& shape : {Shape{2, 24, 40, 6, 2, 37, false}, Shape{2, 24, 40, 6, 2, 37, true},
                             Shape{1, 12, 10, 3, 3, 11, false}, Shape{1, 8, 6, 2, 1, 5, true}}) {
    CAPTURE(shape.dim);
    CAPTURE(shape.tied);
    REQUIRE(shape.problem() == nullptr);
    constexpr std::size_t kBatch = 2;
    constexpr std::size_t kRows = kBatch * 7;
    LlamaReference<double> model(shape, 3);
    // Far from the first values, at which norms are 1 and attention is nearly uniform.
    for (std::size_t id = 0; id < model.parameters().size(); ++id) {
      Doubles& values = model.parameters()[id];
      const Doubles noise = random_values(values.size(), 100 + id, 0.3);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += noise[i];
    }
    const Tokens tokens = random_tokens(kRows, 1, shape.vocab);
    const Tokens targets = random_tokens(kRows, 2, shape.vocab);
    const auto loss = [&] { return model.forward(tokens, targets, kBatch); };
    loss();
    model.backward();

    for (std::size_t id = 0; id < model.parameters().size(); ++id) {
      CAPTURE(model.description()[id].name);
      Doubles& values = model.parameters()[id];
      const Doubles& gradient = model.gradients()[id];
      const double largest =
          std::abs(*std::max_element(gradient.begin(), gradient.end(),
                                     [](double a, double b) { return std::abs(a) < std::abs(b); }));
      REQUIRE(largest > 0.0);
      // First and last, a few between them, and one of a token that is there.
      std::vector<std::size_t> places{0, values.size() - 1, tokens[3] * shape.dim % values.size()};
      for (std::size_t i = 0; i < 9; ++i) {
        places.push_back(tessera::random_bits(5, id, i) % values.size());
      }
      for (const std::size_t place : places) {
        CAPTURE(place);
        CHECK(std::abs(gradient[place] - slope(loss, values[place])) / largest < kTolerance);
      }
    }
  }
}

TEST_CASE("llama reference: the loss of untrained models is near that of a guess") {
  const Shape shape{2, 24, 40, 6, 2, 37, true};
  LlamaReference<double> model(shape, 1);
  const Tokens tokens = random_tokens(14, 1, shape.vocab);
  const Tokens targets = random_tokens(14, 2, shape.vocab);
  CHECK(std::abs(model.forward(tokens, targets, 2) - std::log(37.0)) < 0.2);
}

TEST_CASE("llama reference: no token sees what follows it, or another sequence") {
  const Shape shape{2, 24, 40, 6, 2, 37, false};
  LlamaReference<double> model(shape, 1);
  Tokens tokens = random_tokens(14, 1, shape.vocab);
  const Tokens targets(14);
  model.forward(tokens, targets, 2);
  const Doubles before = model.logits();
  tokens[4] = (tokens[4] + 1) % 37;
  model.forward(tokens, targets, 2);
  for (std::size_t row = 0; row < 14; ++row) {
    CAPTURE(row);
    const auto start = static_cast<std::ptrdiff_t>(row * shape.vocab);
    const auto end = start + static_cast<std::ptrdiff_t>(shape.vocab);
    const bool same =
        std::equal(before.begin() + start, before.begin() + end, model.logits().begin() + start);
    CHECK(same == (row < 4 || row >= 7));
  }
}

TEST_CASE("llama reference: the precisions agree as far as they reach") {
  const Shape shape{2, 48, 40, 6, 2, 37, false};
  const Tokens tokens = random_tokens(34, 1, shape.vocab);
  const Tokens targets = random_tokens(34, 2, shape.vocab);
  LlamaReference<double> exact(shape, 1);
  LlamaReference<float> single(shape, 1);
  LlamaReference<float, llama_reference::RoundToBf16> rounded(shape, 1);
  const double loss = exact.forward(tokens, targets, 2);
  CHECK(std::abs(single.forward(tokens, targets, 2) - loss) < 1e-6);
  CHECK(std::abs(rounded.forward(tokens, targets, 2) - loss) < 2e-2);
  exact.backward();
  single.backward();
  rounded.backward();

  const auto distance = [&](const std::vector<float>& got, const Doubles& expected) {
    double off = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      off += std::pow(static_cast<double>(got[i]) - expected[i], 2.0);
    }
    return std::sqrt(off / dot(expected, expected));
  };
  const auto is_bf16 = [](float value) { return (std::bit_cast<std::uint32_t>(value) << 16) == 0; };
  for (std::size_t id = 0; id < exact.gradients().size(); ++id) {
    CAPTURE(exact.description()[id].name);
    CHECK(distance(single.gradients()[id], exact.gradients()[id]) < 1e-5);
    CHECK(distance(rounded.gradients()[id], exact.gradients()[id]) < 3e-2);
    CHECK(std::all_of(rounded.gradients()[id].begin(), rounded.gradients()[id].end(), is_bf16));
    CHECK(std::all_of(rounded.parameters()[id].begin(), rounded.parameters()[id].end(), is_bf16));
  }
  CHECK(std::all_of(rounded.logits().begin(), rounded.logits().end(), is_bf16));
}
