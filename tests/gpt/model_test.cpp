#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gpt/transformer.hpp"
#include "numeric.hpp"
#include "parameters.hpp"
#include "reference.hpp"

namespace {

using gpt::Config;
using model_tests::micro_step;
using model_tests::Parameters;
using model_tests::Sample;
using numeric::Doubles;
using numeric::Floats;

/// As tessera::bf16, which this test does not need.
struct Half {
  std::uint16_t bits;
};

constexpr Config kSmall{.vocabulary = 13, .context = 5, .layers = 2, .heads = 2, .width = 6};
constexpr std::size_t kBatch = 3;

/// Large enough for every term to matter. In place: the units point at the values.
void fill(Floats& values) {
  const Floats random = numeric::random_floats(values.size(), 11);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.5f * random[i];
}

void poison(Floats& values) {
  std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

TEST_CASE("the whole model's loss and gradients are those of fp64 differences") {
  Parameters<float> p(kSmall);
  REQUIRE(p.values.size() == kSmall.parameters());
  fill(p.values);
  poison(p.gradients);
  const Sample sample(kSmall, kBatch);
  gpt::Transformer<float> model(kSmall, kBatch, false);
  const auto loss = [&](const Doubles& at) {
    return reference::loss(kSmall, at, kBatch, sample.tokens.data(), sample.targets.data());
  };
  const gpt::LossSum got = micro_step(kSmall, model, p, sample);
  CHECK(got.count == kBatch * kSmall.context - 1);
  CHECK(got.sum == doctest::Approx(loss(numeric::widen(p.values))).epsilon(1e-6));
  const Doubles expected = numeric::derivative(loss, numeric::widen(p.values));
  CHECK(numeric::error(p.gradients, expected) < 5e-5);

  // Two micro-steps of the same sample: twice the gradient, the first one overwriting.
  poison(p.gradients);
  micro_step(kSmall, model, p, sample);
  p.accumulate(true);
  micro_step(kSmall, model, p, sample);
  Doubles twice = expected;
  for (double& value : twice) value *= 2.0;
  CHECK(numeric::error(p.gradients, twice) < 5e-5);
}

TEST_CASE("recomputing blocks gives the same bits in less memory") {
  const Config config{.vocabulary = 31, .context = 24, .layers = 3, .heads = 3, .width = 24};
  Parameters<float> kept(config);
  fill(kept.values);
  Parameters<float> recomputed(config);
  recomputed.values = kept.values;
  const Sample sample(config, 4);
  gpt::Transformer<float> a(config, 4, false);
  gpt::Transformer<float> b(config, 4, true);
  for (int step = 0; step < 2; ++step) {
    CHECK(micro_step(config, a, kept, sample).sum == micro_step(config, b, recomputed, sample).sum);
    CHECK(kept.gradients == recomputed.gradients);
  }
  CHECK(b.activation_bytes() < a.activation_bytes());
}

TEST_CASE("runs repeat bit for bit, and fewer sequences than the model was built for do too") {
  Parameters<float> p(kSmall);
  fill(p.values);
  const Sample sample(kSmall, kBatch);
  gpt::Transformer<float> exact(kSmall, kBatch, false);
  gpt::Transformer<float> larger(kSmall, kBatch + 4, false);
  const double loss = micro_step(kSmall, exact, p, sample).sum;
  const Floats gradients = p.gradients;
  CHECK(micro_step(kSmall, exact, p, sample).sum == loss);
  CHECK(p.gradients == gradients);
  larger.use_batch(kBatch);
  CHECK(micro_step(kSmall, larger, p, sample).sum == loss);
  CHECK(p.gradients == gradients);
}

TEST_CASE("validation's loss is training's, and logits are causal") {
  Parameters<float> p(kSmall);
  fill(p.values);
  Sample sample(kSmall, 1);
  gpt::Transformer<float> model(kSmall, 1, false);
  const auto forward = [&] {
    model.embed_forward(p.embedding, sample.tokens.data());
    for (std::size_t i = 0; i < kSmall.layers; ++i) model.block_forward(i, p.blocks[i]);
  };
  const double loss = micro_step(kSmall, model, p, sample).sum;
  forward();
  CHECK(model.head_loss(p.head, sample.targets.data()).sum == loss);
  const float* logits = model.head_logits(p.head);
  const Floats before(logits, logits + kSmall.context * kSmall.vocabulary);
  sample.tokens[3] = (sample.tokens[3] + 1) % 13;
  forward();
  logits = model.head_logits(p.head);
  for (std::size_t i = 0; i < 3 * kSmall.vocabulary; ++i) CHECK(logits[i] == before[i]);
  CHECK(logits[4 * kSmall.vocabulary] != before[4 * kSmall.vocabulary]);
}

TEST_CASE("bf16 weights: gradients are the fp32 ones of the rounded weights, rounded once") {
  Parameters<Half> half(kSmall);
  Parameters<float> full(kSmall);
  fill(full.values);
  for (std::size_t i = 0; i < full.values.size(); ++i) {
    half.values[i] = gpt::to_brain_float<Half>(full.values[i]);
    full.values[i] = gpt::to_float(half.values[i]);
  }
  const Sample sample(kSmall, kBatch);
  gpt::Transformer<float> exact(kSmall, kBatch, false);
  for (const bool recompute : {false, true}) {
    gpt::Transformer<Half> rounded(kSmall, kBatch, recompute);
    for (Half& gradient : half.gradients) gradient.bits = 0x7fc0;  // NaN: must not be read
    full.accumulate(false);
    half.accumulate(false);
    CHECK(micro_step(kSmall, exact, full, sample).sum ==
          micro_step(kSmall, rounded, half, sample).sum);
    // Relative to the gradient itself, or to `floor` where that is larger. Some gradients are zero
    // but for fp32's own rounding (that of the keys' bias is), so there is always a floor.
    const auto worst = [&](std::size_t first, std::size_t last, double floor) {
      double error = 0.0;
      for (std::size_t i = first; i < last; ++i) {
        const double wanted = full.gradients[i];
        const double off = std::abs(gpt::to_float(half.gradients[i]) - wanted);
        if (std::isnan(off)) return off;
        error = std::max(error, off / std::max(std::abs(wanted), floor));
      }
      return error;
    };
    // The token table is rounded after the head's part and after the embedding's, between which
    // its elements may cancel.
    const std::size_t table = kSmall.vocabulary * kSmall.width;
    const std::size_t all = full.gradients.size();
    CHECK(worst(table, all, 1e-3) <= 0x1p-8);
    CHECK(worst(0, table, 1.0) < 0x1p-6);

    full.accumulate(true);
    half.accumulate(true);
    micro_step(kSmall, exact, full, sample);
    micro_step(kSmall, rounded, half, sample);
    CHECK(worst(table, all, 1e-3) < 0x1p-7);
    CHECK(worst(0, table, 1.0) < 0x1p-5);
  }
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN") {
  const auto round = [](float value) { return gpt::to_float(gpt::to_brain_float<Half>(value)); };
  CHECK(round(1.0f) == 1.0f);
  CHECK(round(1.0f + 0x1p-8f) == 1.0f);
  CHECK(round(1.0f + 3 * 0x1p-8f) == 1.0f + 0x1p-6f);
  CHECK(round(1.0f + 0x1p-8f + 0x1p-20f) == 1.0f + 0x1p-7f);
  CHECK(round(3.4e38f) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(round(std::bit_cast<float>(0x7f800001u))));
}
