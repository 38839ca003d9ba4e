// Softmax cross-entropy over the vocabulary: a warp a row.
#pragma once

#include <cstddef>

#include "../gpt/token.hpp"
#include "place.cuh"
#include "queue.hpp"

namespace gpt::cuda {

static __global__ void cross_entropy_kernel(std::size_t rows, std::size_t vocabulary,
                                            const Token* targets, float scale, float* logits,
                                            double* losses) {
  const std::size_t row = this_row();
  if (row >= rows) return;
  logits += row * vocabulary;
  const unsigned lane = this_lane();
  if (targets[row] == kIgnored) {
    for (std::size_t i = lane; i < vocabulary; i += kWarp) logits[i] = 0.0f;
    if (lane == 0) losses[row] = 0.0;
    return;
  }
  const auto target = static_cast<std::size_t>(targets[row]);
  const float wanted = logits[target];
  float highest = logits[0];
  for (std::size_t i = lane; i < vocabulary; i += kWarp) highest = fmaxf(highest, logits[i]);
  const float top = warp_max(highest);
  float partial = 0.0f;
  for (std::size_t i = lane; i < vocabulary; i += kWarp) partial += expf(logits[i] - top);
  const float sum = warp_sum(partial);
  __syncwarp();  // `wanted` and logits[0] have been read by all lanes: now they may be replaced
  const float factor = scale / sum;
  for (std::size_t i = lane; i < vocabulary; i += kWarp) {
    const float probability = expf(logits[i] - top) * factor;
    logits[i] = i == target ? probability - scale : probability;
  }
  if (lane != 0) return;
  losses[row] = log(static_cast<double>(sum)) + (static_cast<double>(top) - wanted);
}

/// Replaces each row of logits by `scale` times the gradient of that row's loss, and writes the
/// losses, one per row; those of ignored targets are zero.
inline void cross_entropy(const Queue& q, std::size_t rows, std::size_t vocabulary,
                          const Token* targets, float scale, float* logits, double* losses) {
  launch_rows(q.stream(), rows, cross_entropy_kernel, vocabulary, targets, scale, logits, losses);
}

}  // namespace gpt::cuda
