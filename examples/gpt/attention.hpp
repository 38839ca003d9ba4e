// Causal multi-head attention, as matrix products of one head of one sequence at a time.
//
// Queries go in blocks: a block only meets the keys up to its own end, so a long context does
// little more than the half of the work that causality leaves. Heads are read in place from the
// packed rows [q | k | v] through the row stride: nothing is transposed or copied.
#pragma once

#include <algorithm>
#include <cstddef>

#include "linear.hpp"
#include "shapes.hpp"
#include "simd.hpp"

namespace gpt {

inline constexpr std::size_t kQueryBlock = 64;

/// Elements of scratch that backward needs.
inline std::size_t attention_scratch(AttentionShape s) {
  return std::min(kQueryBlock, s.context) * s.context;
}

/// `seen` rounded up to whole vectors, as far as the row reaches.
inline std::size_t whole_vectors(std::size_t seen, std::size_t length) {
  return std::min((seen + kLanes - 1) / kLanes * kLanes, length);
}

/// Softmax over the first `seen` of `length` scores; the rest become zero.
inline void causal_softmax(std::size_t seen, std::size_t length, float* row) {
  // Most rows end inside a vector. Scores far below all others fill it: e^-87 vanishes beside the
  // largest term, which is 1, and the row's end is cleared afterwards.
  const std::size_t padded = whole_vectors(seen, length);
  std::fill(row + seen, row + padded, -1e30f);
  Vec highest = splat(row[0]);
  for_lanes(padded,
            [&](std::size_t i, auto lane) { highest = max(lane.load(row + i, -1e30f), highest); });
  const float top = max_of(highest);
  Vec sum{};
  for_lanes(padded, [&](std::size_t i, auto lane) {
    const Vec e = exp(lane.load(row + i, -1e30f) - top);
    lane.store(row + i, e);
    sum += e;
  });
  const float inverse = 1.0f / sum_of(sum);
  for (std::size_t i = 0; i < padded; ++i) row[i] *= inverse;
  std::fill(row + seen, row + length, 0.0f);
}

/// out[rows, width] from qkv[rows, 3 width]; keeps the probabilities.
inline void attention_forward(AttentionShape s, const float* qkv, float* probabilities,
                              float* out) {
  const std::size_t size = s.head_width();
  for (std::size_t b = 0; b < s.batch; ++b) {
    for (std::size_t h = 0; h < s.heads; ++h) {
      const float* q = qkv + b * s.context * s.packed() + h * size;
      const float* k = q + s.width;
      const float* v = k + s.width;
      float* p = probabilities + (b * s.heads + h) * s.context * s.context;
      float* o = out + b * s.context * s.width + h * size;
      for (std::size_t first = 0; first < s.context; first += kQueryBlock) {
        const std::size_t last = std::min(first + kQueryBlock, s.context);
        const std::size_t rows = last - first;
        float* block = p + first * s.context;
        multiply(rows, last, size, s.scale(), {q + first * s.packed(), s.packed()},
                 {k, s.packed(), true}, 0.0f, block, s.context);
        for (std::size_t i = 0; i < rows; ++i) {
          causal_softmax(first + i + 1, last, block + i * s.context);
        }
        multiply(rows, size, last, 1.0f, {block, s.context}, {v, s.packed()}, 0.0f,
                 o + first * s.width, s.width);
      }
    }
  }
}

/// In place: the gradient of the scores from that of the probabilities, which are zero past `seen`.
inline void softmax_backward(std::size_t seen, std::size_t length, const float* p, float* dp) {
  const std::size_t padded = whole_vectors(seen, length);
  Vec sum{};
  for_lanes(padded, [&](std::size_t i, auto lane) { sum += lane.load(p + i) * lane.load(dp + i); });
  const float dot = sum_of(sum);
  for (std::size_t i = 0; i < padded; ++i) dp[i] = p[i] * (dp[i] - dot);
  std::fill(dp + seen, dp + length, 0.0f);
}

/// dqkv[rows, 3 width] from dout[rows, width].
inline void attention_backward(AttentionShape s, const float* dout, const float* qkv,
                               const float* probabilities, float* scratch, float* dqkv) {
  const std::size_t size = s.head_width();
  const std::size_t blocks = (s.context + kQueryBlock - 1) / kQueryBlock;
  for (std::size_t b = 0; b < s.batch; ++b) {
    for (std::size_t h = 0; h < s.heads; ++h) {
      const std::size_t offset = b * s.context * s.packed() + h * size;
      const float* q = qkv + offset;
      const float* k = q + s.width;
      const float* v = k + s.width;
      float* dq = dqkv + offset;
      float* dk = dq + s.width;
      float* dv = dk + s.width;
      const float* p = probabilities + (b * s.heads + h) * s.context * s.context;
      const float* d = dout + b * s.context * s.width + h * size;
      // From the last block to the first: the last one meets every key and writes dk and dv, the
      // others add to the part that they have seen.
      for (std::size_t block = blocks; block-- > 0;) {
        const std::size_t first = block * kQueryBlock;
        const std::size_t last = std::min(first + kQueryBlock, s.context);
        const std::size_t rows = last - first;
        const float beta = block + 1 == blocks ? 0.0f : 1.0f;
        const Matrix weights{p + first * s.context, s.context};
        const Matrix upstream{d + first * s.width, s.width};
        const Matrix scores{scratch, last};
        multiply(last, size, rows, 1.0f, transposed(weights), upstream, beta, dv, s.packed());
        multiply(rows, last, size, 1.0f, upstream, {v, s.packed(), true}, 0.0f, scratch, last);
        for (std::size_t i = 0; i < rows; ++i) {
          softmax_backward(first + i + 1, last, weights.data + i * s.context, scratch + i * last);
        }
        multiply(rows, size, last, s.scale(), scores, {k, s.packed()}, 0.0f,
                 dq + first * s.packed(), s.packed());
        multiply(last, size, rows, s.scale(), transposed(scores),
                 {q + first * s.packed(), s.packed()}, beta, dk, s.packed());
      }
    }
  }
}

}  // namespace gpt
