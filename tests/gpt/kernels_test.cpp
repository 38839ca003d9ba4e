#include "gpt/kernels.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>

#include "numeric.hpp"
#include "reference.hpp"

namespace {

using gpt::Gradient;
using gpt::Token;
using numeric::derivative;
using numeric::dot;
using numeric::Doubles;
using numeric::error;
using numeric::Floats;
using numeric::poison;
using numeric::random_floats;
using numeric::widen;

constexpr double kTolerance = 2e-5;

/// Runs `backward` into poisoned memory, and then adding to what stands there.
template <class Backward>
void check_gradient(std::size_t n, const Doubles& expected, Backward&& backward) {
  Floats written = poison(n);
  backward(Gradient<float>{written.data(), false});
  CHECK(error(written, expected) < kTolerance);

  Floats added(n, 1.0f);
  backward(Gradient<float>{added.data(), true});
  Doubles shifted = expected;
  for (double& value : shifted) value += 1.0;
  CHECK(error(added, shifted) < kTolerance);
}

}  // namespace

TEST_CASE("exp and tanh are within a few units of the last place") {
  const auto lane = [](gpt::Vec v) {
    float lanes[gpt::kLanes];
    gpt::Whole{}.store(lanes, v);
    return static_cast<double>(lanes[0]);
  };
  double worst_exp = 0.0;
  double worst_tanh = 0.0;
  for (double x = -87.0; x < 88.0; x += 0.00917) {
    const float at = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(at));
    worst_exp = std::max(worst_exp, std::abs(lane(gpt::exp(gpt::splat(at))) - exact) / exact);
    const double straight = std::tanh(static_cast<double>(at));
    worst_tanh = std::max(worst_tanh, std::abs(lane(gpt::tanh(gpt::splat(at))) - straight));
  }
  CHECK(worst_exp < 3e-7);
  CHECK(worst_tanh < 3e-7);
  CHECK(lane(gpt::exp(gpt::splat(-1e30f))) < 1e-37);
  CHECK(lane(gpt::exp(gpt::splat(0.0f))) == 1.0);
  CHECK(std::isnan(lane(gpt::exp(gpt::splat(std::numeric_limits<float>::quiet_NaN())))));
}

TEST_CASE("linear: output, residual and gradients") {
  for (const auto& s : {gpt::LinearShape{7, 5, 9}, {16, 32, 24}, {1, 1, 1}}) {
    CAPTURE(s.rows);
    const std::size_t rows = s.rows;
    const std::size_t in = s.in;
    const std::size_t out = s.out;
    const Floats x = random_floats(rows * in, 1);
    const Floats w = random_floats(out * in, 2);
    const Floats b = random_floats(out, 3);
    const Floats dy = random_floats(rows * out, 4);
    const Floats residual = random_floats(rows * out, 5);
    const Doubles expected = reference::linear(widen(x), in, widen(w).data(), widen(b).data(), out);

    Floats y = poison(rows * out);
    gpt::linear_forward(s, x.data(), w.data(), b.data(), nullptr, y.data());
    CHECK(error(y, expected) < kTolerance);
    Doubles sum = expected;
    reference::add(sum, widen(residual));
    gpt::linear_forward(s, x.data(), w.data(), b.data(), residual.data(), y.data());
    CHECK(error(y, sum) < kTolerance);

    Floats dx = poison(rows * in);
    gpt::linear_input_gradient(s, dy.data(), w.data(), dx.data());
    const auto loss_of_x = [&](const Doubles& at) {
      return dot(reference::linear(at, in, widen(w).data(), nullptr, out), dy);
    };
    CHECK(error(dx, derivative(loss_of_x, widen(x))) < kTolerance);
    const auto loss_of_w = [&](const Doubles& at) {
      return dot(reference::linear(widen(x), in, at.data(), nullptr, out), dy);
    };
    check_gradient(w.size(), derivative(loss_of_w, widen(w)), [&](Gradient<float> g) {
      gpt::linear_weight_gradient(s, dy.data(), x.data(), g);
    });
    const auto loss_of_b = [&](const Doubles& at) {
      return dot(reference::linear(widen(x), in, widen(w).data(), at.data(), out), dy);
    };
    check_gradient(b.size(), derivative(loss_of_b, widen(b)),
                   [&](Gradient<float> g) { gpt::linear_bias_gradient(s, dy.data(), g); });
  }
}

TEST_CASE("layer norm: output and gradients") {
  for (const std::size_t width : {1u, 5u, 16u, 37u}) {
    CAPTURE(width);
    constexpr std::size_t kRows = 6;
    const Floats x = random_floats(kRows * width, 1);
    const Floats w = random_floats(width, 2);
    const Floats b = random_floats(width, 3);
    const Floats dy = random_floats(kRows * width, 4);
    Floats mean(kRows);
    Floats inverse(kRows);
    const gpt::NormStatistics saved{mean.data(), inverse.data()};
    const auto loss = [&](const Doubles& x_, const Doubles& w_, const Doubles& b_) {
      return dot(reference::layer_norm(x_, width, w_.data(), b_.data()), dy);
    };

    Floats y = poison(x.size());
    gpt::layer_norm_forward(kRows, width, x.data(), w.data(), b.data(), saved, y.data());
    CHECK(error(y, reference::layer_norm(widen(x), width, widen(w).data(), widen(b).data())) <
          kTolerance);

    Floats dx(x.size(), 1.0f);  // the gradient of the residual stream beside it
    const auto backward = [&](Gradient<float> dw, Gradient<float> db) {
      std::fill(dx.begin(), dx.end(), 1.0f);
      gpt::layer_norm_backward(kRows, width, dy.data(), x.data(), w.data(), saved, dw, db,
                               dx.data());
    };
    Floats other(width);
    const Gradient<float> ignored{other.data(), false};
    check_gradient(
        width,
        derivative([&](const Doubles& at) { return loss(widen(x), at, widen(b)); }, widen(w)),
        [&](Gradient<float> g) { backward(g, ignored); });
    check_gradient(
        width,
        derivative([&](const Doubles& at) { return loss(widen(x), widen(w), at); }, widen(b)),
        [&](Gradient<float> g) { backward(ignored, g); });
    Doubles expected =
        derivative([&](const Doubles& at) { return loss(at, widen(w), widen(b)); }, widen(x));
    for (double& value : expected) value += 1.0;
    CHECK(error(dx, expected) < kTolerance);
  }
}

TEST_CASE("gelu: output and gradient") {
  Floats x = random_floats(1003, 1);
  for (float& value : x) value *= 6.0f;
  const Floats upstream = random_floats(x.size(), 2);
  Doubles expected;
  Doubles slopes;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    expected.push_back(reference::gelu(at));
    const auto one = [](const Doubles& v) { return reference::gelu(v[0]); };
    slopes.push_back(derivative(one, {at})[0] * static_cast<double>(upstream[i]));
  }
  Floats y = poison(x.size());
  gpt::gelu_forward(x.size(), x.data(), y.data());
  CHECK(error(y, expected) < kTolerance);
  Floats gradient = upstream;
  gpt::gelu_backward(x.size(), x.data(), gradient.data());
  CHECK(error(gradient, slopes) < kTolerance);
}

TEST_CASE("cross-entropy: loss and gradient, in place; ignored targets count nothing") {
  for (const std::size_t vocabulary : {2u, 11u, 32u}) {
    CAPTURE(vocabulary);
    constexpr std::size_t kRows = 5;
    constexpr float kScale = 0.25f;
    const Token last = static_cast<Token>(vocabulary) - 1;
    const Token targets[kRows] = {0, last, gpt::kIgnored, 1, last};
    Floats logits = random_floats(kRows * vocabulary, 1);
    for (float& value : logits) value *= 5.0f;
    const auto loss = [&](const Doubles& at) {
      return reference::cross_entropy(at, vocabulary, targets);
    };
    Doubles expected = derivative(loss, widen(logits));
    for (double& value : expected) value *= kScale;
    const double expected_loss = loss(widen(logits));

    const gpt::LossSum sum = gpt::cross_entropy(kRows, vocabulary, targets, kScale, logits.data());
    CHECK(sum.count == 4);
    CHECK(sum.sum == doctest::Approx(expected_loss).epsilon(1e-6));
    CHECK(error(logits, expected) < kTolerance);
  }
}

TEST_CASE("cross-entropy: a NaN among the logits reaches the loss") {
  for (const std::size_t where : {0u, 3u, 10u}) {
    Floats logits = random_floats(11, 1);
    logits[where] = std::numeric_limits<float>::quiet_NaN();
    const Token target = 5;
    CHECK(std::isnan(gpt::cross_entropy(1, 11, &target, 1.0f, logits.data()).sum));
  }
}

TEST_CASE("embedding: output and gradient, the same bits every time") {
  constexpr std::size_t kBatch = 3, kContext = 5, kWidth = 7, kVocabulary = 6;
  constexpr std::size_t kRows = kBatch * kContext;
  const Token tokens[kRows] = {0, 2, 2, 2, 4, 4, 0, 2, 1, 1, 2, 2, 4, 0, 2};  // 3 and 5: never
  const Floats table = random_floats(kVocabulary * kWidth, 1);
  const Floats positions = random_floats(kContext * kWidth, 2);
  const Floats dx = random_floats(kRows * kWidth, 3);

  Floats x = poison(kRows * kWidth);
  gpt::embedding_forward(kBatch, kContext, kWidth, tokens, table.data(), positions.data(),
                         x.data());
  Doubles expected(x.size());
  Doubles token_gradient(table.size());
  Doubles position_gradient(positions.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / kWidth;
    const std::size_t token = static_cast<std::size_t>(tokens[row]) * kWidth + i % kWidth;
    const std::size_t position = row % kContext * kWidth + i % kWidth;
    expected[i] = static_cast<double>(table[token]) + static_cast<double>(positions[position]);
    token_gradient[token] += static_cast<double>(dx[i]);
    position_gradient[position] += static_cast<double>(dx[i]);
  }
  CHECK(error(x, expected) < kTolerance);

  const auto backward = [&](Gradient<float> token, Gradient<float> position) {
    gpt::embedding_backward(kBatch, kContext, kWidth, kVocabulary, tokens, dx.data(), token,
                            position);
  };
  Floats other(std::max(table.size(), positions.size()));
  const Gradient<float> ignored{other.data(), false};
  check_gradient(table.size(), token_gradient, [&](Gradient<float> g) { backward(g, ignored); });
  check_gradient(positions.size(), position_gradient,
                 [&](Gradient<float> g) { backward(ignored, g); });

  Floats once(table.size());
  backward({once.data(), false}, ignored);
  for (int repeat = 0; repeat < 10; ++repeat) {
    Floats again = poison(table.size());
    backward({again.data(), false}, ignored);
    CHECK(again == once);
  }
}
