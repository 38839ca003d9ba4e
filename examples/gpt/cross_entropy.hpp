// Softmax cross-entropy over the vocabulary.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>

#include "loss_sum.hpp"
#include "simd.hpp"
#include "token.hpp"

namespace gpt {

/// A logit so low that its probability vanishes beside any other: fills the end of a vector.
inline constexpr float kNothing = -1e30f;

/// Replaces each row of logits by `scale` times the gradient of that row's loss.
inline LossSum cross_entropy(std::size_t rows, std::size_t vocabulary, const Token* targets,
                             float scale, float* logits) {
  LossSum loss;
  for (std::size_t row = 0; row < rows; ++row, logits += vocabulary) {
    if (targets[row] == kIgnored) {
      std::memset(logits, 0, vocabulary * sizeof(float));
      continue;
    }
    const auto target = static_cast<std::size_t>(targets[row]);
    const float wanted = logits[target];
    Vec highest = splat(logits[0]);
    for_lanes(vocabulary, [&](std::size_t i, auto lane) {
      highest = max(lane.load(logits + i, kNothing), highest);
    });
    const float top = max_of(highest);

    Vec partial{};
    for_lanes(vocabulary, [&](std::size_t i, auto lane) {
      const Vec e = exp(lane.load(logits + i, kNothing) - top);
      lane.store(logits + i, e);
      partial += e;
    });
    const float sum = sum_of(partial);
    loss.sum += std::log(static_cast<double>(sum)) + (static_cast<double>(top) - wanted);
    ++loss.count;

    const float factor = scale / sum;
    for (std::size_t i = 0; i < vocabulary; ++i) logits[i] *= factor;
    logits[target] -= scale;
  }
  return loss;
}

}  // namespace gpt
