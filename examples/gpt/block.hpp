// One transformer block, pre-norm: x + attention(norm(x)), then y + mlp(norm(y)).
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
    scratch.wide = arena.take(s.rows() * s.hidden());
    scratch.narrow = arena.take(s.rows() * s.width);
    scratch.scores = arena.take(attention_scratch(s.attention()));
    return scratch;
  }
};

/// Everything up to the last product, which only the block's output needs.
inline void block_activate(BlockShape s, const BlockWeights<const float>& w, const float* x,
                           const BlockActivations& a) {
  layer_norm_forward(s.rows(), s.width, x, w.ln1_w, w.ln1_b, a.norm1, a.normed1);
  linear_forward(s.qkv(), a.normed1, w.qkv_w, w.qkv_b, nullptr, a.qkv);
  attention_forward(s.attention(), a.qkv, a.probabilities, a.attended);
  linear_forward(s.proj(), a.attended, w.proj_w, w.proj_b, x, a.middle);
  layer_norm_forward(s.rows(), s.width, a.middle, w.ln2_w, w.ln2_b, a.norm2, a.normed2);
  linear_forward(s.fc(), a.normed2, w.fc_w, w.fc_b, nullptr, a.fc);
  gelu_forward(s.rows() * s.hidden(), a.fc, a.gelu);
}

inline void block_forward(BlockShape s, const BlockWeights<const float>& w, const float* x,
                          const BlockActivations& a, float* y) {
  block_activate(s, w, x, a);
  linear_forward(s.fc_proj(), a.gelu, w.fc_proj_w, w.fc_proj_b, a.middle, y);
}

/// d holds the gradient of the block's output before, and of its input x after.
inline void block_backward(BlockShape s, const BlockWeights<const float>& w,
                           const BlockGradients<float>& g, const float* x,
                           const BlockActivations& a, const BlockScratch& scratch, float* d) {
  linear_bias_gradient(s.fc_proj(), d, g.fc_proj_b);
  linear_weight_gradient(s.fc_proj(), d, a.gelu, g.fc_proj_w);
  linear_input_gradient(s.fc_proj(), d, w.fc_proj_w, scratch.wide);
  gelu_backward(s.rows() * s.hidden(), a.fc, scratch.wide);
  linear_bias_gradient(s.fc(), scratch.wide, g.fc_b);
  linear_weight_gradient(s.fc(), scratch.wide, a.normed2, g.fc_w);
  linear_input_gradient(s.fc(), scratch.wide, w.fc_w, scratch.narrow);
  layer_norm_backward(s.rows(), s.width, scratch.narrow, a.middle, w.ln2_w, a.norm2, g.ln2_w,
                      g.ln2_b, d);

  linear_bias_gradient(s.proj(), d, g.proj_b);
  linear_weight_gradient(s.proj(), d, a.attended, g.proj_w);
  linear_input_gradient(s.proj(), d, w.proj_w, scratch.narrow);
  attention_backward(s.attention(), scratch.narrow, a.qkv, a.probabilities, scratch.scores,
                     scratch.wide);
  linear_bias_gradient(s.qkv(), scratch.wide, g.qkv_b);
  linear_weight_gradient(s.qkv(), scratch.wide, a.normed1, g.qkv_w);
  linear_input_gradient(s.qkv(), scratch.wide, w.qkv_w, scratch.narrow);
  layer_norm_backward(s.rows(), s.width, scratch.narrow, x, w.ln1_w, a.norm1, g.ln1_w, g.ln1_b, d);
}

}  // namespace gpt
