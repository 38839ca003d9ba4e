// Causal multi-head attention, with the probabilities kept for backward.
//
// Heads are read in place from the packed rows [q | k | v] through the row stride, as on the host:
// nothing is transposed or copied. Scores past the diagonal are computed and thrown away.
#pragma once

#include <cstddef>

#include "../gpt/shapes.hpp"
#include "place.cuh"
#include "queue.hpp"

namespace gpt::cuda {

/// Softmax over the keys up to the query's own place; the probabilities of the others are zero.
static __global__ void causal_softmax_kernel(std::size_t rows, std::size_t context, float* p) {
  const std::size_t row = this_row();
  if (row >= rows) return;
  p += row * context;
  const std::size_t seen = row % context + 1;
  float highest = p[0];
  for (std::size_t i = this_lane(); i < seen; i += kWarp) highest = fmaxf(highest, p[i]);
  const float top = warp_max(highest);  // all lanes have read p[0] before any writes it
  float sum = 0.0f;
  for (std::size_t i = this_lane(); i < seen; i += kWarp) {
    const float e = expf(p[i] - top);
    p[i] = e;
    sum += e;
  }
  const float inverse = 1.0f / warp_sum(sum);
  for (std::size_t i = this_lane(); i < context; i += kWarp) {
    p[i] = i < seen ? p[i] * inverse : 0.0f;
  }
}

/// In place: the gradient of the scores from that of the probabilities.
static __global__ void softmax_backward_kernel(std::size_t rows, std::size_t context,
                                               const float* p, float* dp) {
  const std::size_t row = this_row();
  if (row >= rows) return;
  p += row * context;
  dp += row * context;
  const std::size_t seen = row % context + 1;
  float sum = 0.0f;
  for (std::size_t i = this_lane(); i < seen; i += kWarp) sum += p[i] * dp[i];
  const float dot = warp_sum(sum);
  for (std::size_t i = this_lane(); i < context; i += kWarp) {
    dp[i] = i < seen ? p[i] * (dp[i] - dot) : 0.0f;
  }
}

/// The heads of all sequences have no common step in the packed rows. Those of one sequence do, and
/// so do one head's in all sequences: the fewer of the two are calls, the others one call's batch.
struct HeadGroups {
  struct Group {
    std::size_t sequence, head;  // the first of the group
  };

  explicit HeadGroups(AttentionShape s)
      : by_sequence(s.batch <= s.heads),
        groups(by_sequence ? s.batch : s.heads),
        size(by_sequence ? s.heads : s.batch),
        packed_step(by_sequence ? s.head_width() : s.context * s.packed()),
        output_step(by_sequence ? s.head_width() : s.context * s.width),
        score_step(s.context * s.context * (by_sequence ? 1 : s.heads)),
        shape(s) {}

  Group operator[](std::size_t i) const { return by_sequence ? Group{i, 0} : Group{0, i}; }
  std::size_t packed_at(Group g) const {
    return g.sequence * shape.context * shape.packed() + g.head * shape.head_width();
  }
  std::size_t output_at(Group g) const {
    return g.sequence * shape.context * shape.width + g.head * shape.head_width();
  }
  std::size_t score_at(Group g) const {
    return (g.sequence * shape.heads + g.head) * shape.context * shape.context;
  }

  bool by_sequence;
  std::size_t groups, size;
  std::size_t packed_step, output_step, score_step;
  AttentionShape shape;
};

/// out[rows, width] from qkv[rows, 3 width]; keeps the probabilities.
inline void attention_forward(const Queue& queue, AttentionShape s, const float* qkv,
                              float* probabilities, float* out) {
  const HeadGroups heads(s);
  const std::size_t t = s.context;
  for (std::size_t i = 0; i < heads.groups; ++i) {
    const float* q = qkv + heads.packed_at(heads[i]);
    const Matrices queries{q, s.packed(), heads.packed_step};
    const Matrices keys{q + s.width, s.packed(), heads.packed_step};
    queue.multiply(heads.size, t, t, s.head_width(), s.scale(), queries, transposed(keys),
                   probabilities + heads.score_at(heads[i]), t, heads.score_step);
  }
  launch_rows(queue.stream(), s.batch * s.heads * t, causal_softmax_kernel, t, probabilities);
  for (std::size_t i = 0; i < heads.groups; ++i) {
    const Matrices weights{probabilities + heads.score_at(heads[i]), t, heads.score_step};
    const Matrices values{qkv + heads.packed_at(heads[i]) + 2 * s.width, s.packed(),
                          heads.packed_step};
    queue.multiply(heads.size, t, s.head_width(), t, 1.0f, weights, values,
                   out + heads.output_at(heads[i]), s.width, heads.output_step);
  }
}

/// dqkv[rows, 3 width] from dout[rows, width]. `scratch` is as large as the probabilities.
inline void attention_backward(const Queue& queue, AttentionShape s, const float* dout,
                               const float* qkv, const float* probabilities, float* scratch,
                               float* dqkv) {
  const HeadGroups heads(s);
  const std::size_t t = s.context;
  const std::size_t size = s.head_width();
  for (std::size_t i = 0; i < heads.groups; ++i) {
    const Matrices upstream{dout + heads.output_at(heads[i]), s.width, heads.output_step};
    const Matrices weights{probabilities + heads.score_at(heads[i]), t, heads.score_step};
    const std::size_t at = heads.packed_at(heads[i]);
    const Matrices values{qkv + at + 2 * s.width, s.packed(), heads.packed_step};
    queue.multiply(heads.size, t, size, t, 1.0f, transposed(weights), upstream,
                   dqkv + at + 2 * s.width, s.packed(), heads.packed_step);
    queue.multiply(heads.size, t, t, size, 1.0f, upstream, transposed(values),
                   scratch + heads.score_at(heads[i]), t, heads.score_step);
  }
  launch_rows(queue.stream(), s.batch * s.heads * t, softmax_backward_kernel, t, probabilities,
              scratch);
  for (std::size_t i = 0; i < heads.groups; ++i) {
    const Matrices scores{scratch + heads.score_at(heads[i]), t, heads.score_step};
    const std::size_t at = heads.packed_at(heads[i]);
    const Matrices queries{qkv + at, s.packed(), heads.packed_step};
    const Matrices keys{qkv + at + s.width, s.packed(), heads.packed_step};
    queue.multiply(heads.size, t, size, t, s.scale(), scores, keys, dqkv + at, s.packed(),
                   heads.packed_step);
    queue.multiply(heads.size, t, size, t, s.scale(), transposed(scores), queries,
                   dqkv + at + s.width, s.packed(), heads.packed_step);
  }
}

}  // namespace gpt::cuda
