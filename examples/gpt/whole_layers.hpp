// How a layer's parts come together where one rank computes all of it: they are together.
#pragma once

#include <cstddef>

#include "config.hpp"
#include "cross_entropy.hpp"
#include "embedding.hpp"
#include "linear.hpp"
#include "loss_sum.hpp"
#include "shapes.hpp"

namespace gpt {

/// What the transformer asks of an axis: the borders of the regions in which ranks have a part of
/// each layer's columns, and the layers that know of other ranks. Here nothing passes a border.
/// See TensorAxis for the one that does something, and tessera::ParallelRegion for the four
/// borders.
struct WholeLayers {
  /// Of `rows`, those that the norms and the residual stream have on this rank.
  std::size_t own_rows(std::size_t rows) const { return rows; }

  const float* enter(std::size_t, std::size_t, const float* own) { return own; }
  float* enter_backward(std::size_t, std::size_t, float* partial) { return partial; }
  const float* leave_backward(std::size_t, std::size_t, const float* own) { return own; }

  /// The layer that a region ends with: y = x w^T + bias + residual, of this rank's rows.
  void leave_linear(LinearShape s, const float* x, const float* w, const float* bias,
                    const float* residual, float* y) {
    linear_forward(s, x, w, bias, residual, y);
  }

  /// Where a norm's gradient [n] is written, which is a sum over own rows; `sum_parts` then makes
  /// it that of all rows, before the lease closes.
  Gradient<float> part(Gradient<float> gradient, std::size_t) { return gradient; }
  void sum_parts() {}

  template <class P>
  void embed_forward(const Config& c, std::size_t batch, const Token* tokens, const P* token_table,
                     const P* position_table, float* x) {
    embedding_forward(batch, c.context, c.width, tokens, token_table, position_table, x);
  }
  void embed_backward(const Config& c, std::size_t batch, const Token* tokens, const float* dx,
                      Gradient<float> token_table, Gradient<float> position_table) {
    embedding_backward(batch, c.context, c.width, c.vocabulary, tokens, dx, token_table,
                       position_table);
  }

  /// Of all rows; logits are of this rank's tokens.
  LossSum loss(const Config& c, std::size_t rows, const Token* targets, float scale,
               float* logits) {
    return cross_entropy(rows, c.vocabulary, targets, scale, logits);
  }
  /// Those of all tokens, of one sequence at the most.
  const float* all_logits(const Config&, std::size_t, const float* logits) { return logits; }
};

}  // namespace gpt
