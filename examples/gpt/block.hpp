// One transformer block, pre-norm: x + attention(norm(x)), then y + mlp(norm(y)).
//
// Attention and the MLP are a region each, which `axis` says how to enter and to leave: ranks may
// have some of the heads and of the MLP's columns. See whole_layers.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "activations.hpp"
#include "arena.hpp"
#include "config.hpp"
#include "kernels.hpp"
#include "shapes.hpp"
#include "tensors.hpp"

namespace gpt {

/// What backward overwrites as it goes; one for all blocks.
struct BlockScratch {
  float *wide, *narrow, *scores;

  static BlockScratch carve(Arena& arena, BlockShape s) {
    BlockScratch scratch;
    scratch.wide = arena.take(s.rows() * std::max(s.hidden(), s.qkv().out));
    scratch.narrow = arena.take(s.rows() * s.width);
    scratch.scores = arena.take(attention_scratch(s.attention()));
    return scratch;
  }
};

/// Everything up to the last product, which only the block's output needs.
template <class Axis>
void block_activate(BlockShape s, Axis& axis, const BlockWeights<const float>& w, const float* x,
                    const BlockActivations& a) {
  const std::size_t own = axis.own_rows(s.rows());
  layer_norm_forward(own, s.width, x, w.ln1_w, w.ln1_b, a.norm1, a.normed1);
  const float* const normed1 = axis.enter(s.rows(), s.width, a.normed1);
  linear_forward(s.qkv(), normed1, w.qkv_w, w.qkv_b, nullptr, a.qkv);
  attention_forward(s.attention(), a.qkv, a.probabilities, a.attended);
  axis.leave_linear(s.proj(), a.attended, w.proj_w, w.proj_b, x, a.middle);
  layer_norm_forward(own, s.width, a.middle, w.ln2_w, w.ln2_b, a.norm2, a.normed2);
  const float* const normed2 = axis.enter(s.rows(), s.width, a.normed2);
  linear_forward(s.fc(), normed2, w.fc_w, w.fc_b, nullptr, a.fc);
  gelu_forward(s.rows() * s.hidden(), a.fc, a.gelu);
}

template <class Axis>
void block_forward(BlockShape s, Axis& axis, const BlockWeights<const float>& w, const float* x,
                   const BlockActivations& a, float* y) {
  block_activate(s, axis, w, x, a);
  axis.leave_linear(s.fc_proj(), a.gelu, w.fc_proj_w, w.fc_proj_b, a.middle, y);
}

/// d holds the gradient of the block's output before, and of its input x after.
template <class Axis>
void block_backward(BlockShape s, Axis& axis, const BlockWeights<const float>& w,
                    const BlockGradients<float>& g, const float* x, const BlockActivations& a,
                    const BlockScratch& scratch, float* d) {
  const std::size_t rows = s.rows();
  const std::size_t own = axis.own_rows(rows);
  // All rows of d, and then those of the region's input, which are not kept where ranks have some.
  const float* all = axis.leave_backward(rows, s.width, d);
  linear_bias_gradient(s.fc_proj(), all, g.fc_proj_b);
  linear_weight_gradient(s.fc_proj(), all, a.gelu, g.fc_proj_w);
  linear_input_gradient(s.fc_proj(), all, w.fc_proj_w, scratch.wide);
  gelu_backward(rows * s.hidden(), a.fc, scratch.wide);
  linear_bias_gradient(s.fc(), scratch.wide, g.fc_b);
  all = axis.enter(rows, s.width, a.normed2);
  linear_weight_gradient(s.fc(), scratch.wide, all, g.fc_w);
  linear_input_gradient(s.fc(), scratch.wide, w.fc_w, scratch.narrow);
  const float* dy = axis.enter_backward(rows, s.width, scratch.narrow);
  const Gradient<float> ln2_w = axis.part(g.ln2_w, s.width);
  const Gradient<float> ln2_b = axis.part(g.ln2_b, s.width);
  layer_norm_backward(own, s.width, dy, a.middle, w.ln2_w, a.norm2, ln2_w, ln2_b, d);

  all = axis.leave_backward(rows, s.width, d);
  linear_bias_gradient(s.proj(), all, g.proj_b);
  linear_weight_gradient(s.proj(), all, a.attended, g.proj_w);
  linear_input_gradient(s.proj(), all, w.proj_w, scratch.narrow);
  attention_backward(s.attention(), scratch.narrow, a.qkv, a.probabilities, scratch.scores,
                     scratch.wide);
  linear_bias_gradient(s.qkv(), scratch.wide, g.qkv_b);
  all = axis.enter(rows, s.width, a.normed1);
  linear_weight_gradient(s.qkv(), scratch.wide, all, g.qkv_w);
  linear_input_gradient(s.qkv(), scratch.wide, w.qkv_w, scratch.narrow);
  dy = axis.enter_backward(rows, s.width, scratch.narrow);
  const Gradient<float> ln1_w = axis.part(g.ln1_w, s.width);
  const Gradient<float> ln1_b = axis.part(g.ln1_b, s.width);
  layer_norm_backward(own, s.width, dy, x, w.ln1_w, a.norm1, ln1_w, ln1_b, d);
  axis.sum_parts();
}

}  // namespace gpt
