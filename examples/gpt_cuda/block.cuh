// One transformer block, pre-norm: x + attention(norm(x)), then y + mlp(norm(y)). As gpt/block.hpp.
#pragma once

#include <cstddef>

#include "../gpt/activations.hpp"
#include "../gpt/shapes.hpp"
#include "../gpt/tensors.hpp"
#include "attention.cuh"
#include "gelu.cuh"
#include "layer_norm.cuh"
#include "linear.cuh"

namespace gpt::cuda {

/// What backward overwrites as it goes; one for all blocks.
struct BlockScratch {
  float *wide, *narrow, *scores;

  static BlockScratch carve(DeviceArena& arena, BlockShape s) {
    BlockScratch scratch;
    scratch.wide = arena.take(s.rows() * s.hidden());
    scratch.narrow = arena.take(s.rows() * s.width);
    scratch.scores = arena.take(s.attention().probabilities());
    return scratch;
  }
};

/// Everything up to the last product, which only the block's output needs.
inline void block_activate(const Queue& q, BlockShape s, const BlockWeights<const float>& w,
                           const float* x, const BlockActivations& a) {
  layer_norm_forward(q, s.rows(), s.width, x, w.ln1_w, w.ln1_b, a.norm1, a.normed1);
  linear_forward(q, s.qkv(), a.normed1, w.qkv_w, w.qkv_b, nullptr, a.qkv);
  attention_forward(q, s.attention(), a.qkv, a.probabilities, a.attended);
  linear_forward(q, s.proj(), a.attended, w.proj_w, w.proj_b, x, a.middle);
  layer_norm_forward(q, s.rows(), s.width, a.middle, w.ln2_w, w.ln2_b, a.norm2, a.normed2);
  linear_forward(q, s.fc(), a.normed2, w.fc_w, w.fc_b, nullptr, a.fc);
  gelu_forward(q, s.rows() * s.hidden(), a.fc, a.gelu);
}

inline void block_forward(const Queue& q, BlockShape s, const BlockWeights<const float>& w,
                          const float* x, const BlockActivations& a, float* y) {
  block_activate(q, s, w, x, a);
  linear_forward(q, s.fc_proj(), a.gelu, w.fc_proj_w, w.fc_proj_b, a.middle, y);
}

/// d holds the gradient of the block's output before, and of its input x after.
inline void block_backward(const Queue& q, BlockShape s, const BlockWeights<const float>& w,
                           const BlockGradients<float>& g, const float* x,
                           const BlockActivations& a, const BlockScratch& scratch,
                           ColumnScratch columns, float* d) {
  linear_bias_gradient(q, s.fc_proj(), d, columns, g.fc_proj_b);
  linear_weight_gradient(q, s.fc_proj(), d, a.gelu, g.fc_proj_w);
  linear_input_gradient(q, s.fc_proj(), d, w.fc_proj_w, scratch.wide);
  gelu_backward(q, s.rows() * s.hidden(), a.fc, scratch.wide);
  linear_bias_gradient(q, s.fc(), scratch.wide, columns, g.fc_b);
  linear_weight_gradient(q, s.fc(), scratch.wide, a.normed2, g.fc_w);
  linear_input_gradient(q, s.fc(), scratch.wide, w.fc_w, scratch.narrow);
  layer_norm_backward(q, s.rows(), s.width, scratch.narrow, a.middle, w.ln2_w, a.norm2, columns,
                      g.ln2_w, g.ln2_b, d);

  linear_bias_gradient(q, s.proj(), d, columns, g.proj_b);
  linear_weight_gradient(q, s.proj(), d, a.attended, g.proj_w);
  linear_input_gradient(q, s.proj(), d, w.proj_w, scratch.narrow);
  attention_backward(q, s.attention(), scratch.narrow, a.qkv, a.probabilities, scratch.scores,
                     scratch.wide);
  linear_bias_gradient(q, s.qkv(), scratch.wide, columns, g.qkv_b);
  linear_weight_gradient(q, s.qkv(), scratch.wide, a.normed1, g.qkv_w);
  linear_input_gradient(q, s.qkv(), scratch.wide, w.qkv_w, scratch.narrow);
  layer_norm_backward(q, s.rows(), s.width, scratch.narrow, x, w.ln1_w, a.norm1, columns, g.ln1_w,
                      g.ln1_b, d);
}

}  // namespace gpt::cuda
