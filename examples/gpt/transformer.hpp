// The model, one unit at a time.
//
// A trainer that shards its weights has them only between a lease's begin and end, so every call
// takes the weights (and, backward, the gradients) of the unit it works on and keeps none of them.
// The order is embed_forward, block_forward of each layer, head_forward_backward, block_backward
// of each layer from the last, embed_backward. Activations are allocated once, by the constructor.
//
// Where several ranks compute each layer together, weights are this rank's parts, and each call is
// one of all these ranks with the same tokens; losses are those of all of them.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "block.hpp"
#include "element.hpp"
#include "unit_scratch.hpp"
#include "whole_layers.hpp"

namespace gpt {

/// `Axis`: how ranks compute layers together; WholeLayers, or a reference to a TensorAxis.
template <Element P, class Axis = WholeLayers>
class Transformer {
 public:
  /// `batch`: the most sequences that one call works on.
  Transformer(const Config& config, std::size_t batch, bool recompute, Axis axis = Axis())
      : config_(config), batch_(batch), recompute_(recompute), axis_(axis), units_(config) {
    Arena counted;
    carve(counted);
    arena_ = Arena(counted.used());
    carve(arena_);
    use_batch(batch);
  }

  /// Work on fewer sequences than the constructor was told, until told otherwise.
  void use_batch(std::size_t batch) { shape_.batch = batch; }
  std::size_t rows() const { return shape_.rows(); }
  std::size_t activation_bytes() const { return arena_.used() * sizeof(float); }

  void embed_forward(const EmbeddingWeights<P>& w, const Token* tokens) {
    axis_.embed_forward(config_, shape_.batch, tokens, w.token, w.position, stream_[0]);
  }

  void block_forward(std::size_t layer, const BlockWeights<P>& w) {
    gpt::block_forward(shape_, axis_, units_.widened(w), stream_[layer], activations(layer),
                       stream_[layer + 1]);
  }

  /// The loss of `targets`, and the gradients of `scale` times its sum.
  LossSum head_forward_backward(const HeadWeights<P>& w, const HeadGradients<P>& g,
                                const Token* targets, float scale) {
    const HeadWeights<const float> wide = units_.widened(w);
    const float* const normed = project(wide);
    const LossSum loss = axis_.loss(config_, rows(), targets, scale, logits_);
    const HeadGradients<float> gradients = units_.targets(g);
    const LinearShape shape = head();
    linear_weight_gradient(shape, logits_, normed, gradients.token);
    linear_input_gradient(shape, logits_, wide.token, scratch_.narrow);
    const std::size_t own = axis_.own_rows(rows());
    const float* const dy = axis_.enter_backward(rows(), config_.width, scratch_.narrow);
    const Gradient<float> norm_w = axis_.part(gradients.norm_w, config_.width);
    const Gradient<float> norm_b = axis_.part(gradients.norm_b, config_.width);
    std::memset(gradient_, 0, own * config_.width * sizeof(float));
    layer_norm_backward(own, config_.width, dy, stream_[config_.layers], wide.norm_w, norm_, norm_w,
                        norm_b, gradient_);
    axis_.sum_parts();
    units_.deliver(g);
    loss_ += loss;
    return loss;
  }

  /// The weights are those of block_forward's lease, gathered again. A recomputing model runs the
  /// block's forward pass again first, from the one thing that it kept: the block's input.
  void block_backward(std::size_t layer, const BlockWeights<P>& w, const BlockGradients<P>& g) {
    const BlockWeights<const float> wide = units_.widened(w);
    if (recompute_) block_activate(shape_, axis_, wide, stream_[layer], activations(layer));
    gpt::block_backward(shape_, axis_, wide, units_.targets(g), stream_[layer], activations(layer),
                        scratch_, gradient_);
    units_.deliver(g);
  }

  /// Where the trainer runs this after the head in one micro-step, the token table's gradient has
  /// the head's part already and g.token.accumulate must be true.
  void embed_backward(const EmbeddingGradients<P>& g, const Token* tokens) {
    const EmbeddingGradients<float> gradients = units_.targets(g);
    axis_.embed_backward(config_, shape_.batch, tokens, gradient_, gradients.token,
                         gradients.position);
    units_.deliver(g);
  }

  /// The loss alone, for validation.
  LossSum head_loss(const HeadWeights<P>& w, const Token* targets) {
    project(units_.widened(w));
    const LossSum loss = axis_.loss(config_, rows(), targets, 1.0f, logits_);
    loss_ += loss;
    return loss;
  }

  /// What the losses since the last call add up to.
  LossSum take_loss() { return std::exchange(loss_, {}); }

  /// logits[rows(), vocabulary], for sampling: of one sequence, where ranks have a part of the
  /// vocabulary. Valid until the next call.
  const float* head_logits(const HeadWeights<P>& w) {
    project(units_.widened(w));
    return axis_.all_logits(config_, rows(), logits_);
  }

 private:
  LinearShape head() const { return {rows(), config_.width, vocabulary()}; }
  std::size_t vocabulary() const { return config_.own_vocabulary().size; }

  const BlockActivations& activations(std::size_t layer) const {
    return activations_[recompute_ ? 0 : layer];
  }

  /// The logits, and what they are computed of: all rows of the last norm.
  const float* project(const HeadWeights<const float>& w) {
    layer_norm_forward(axis_.own_rows(rows()), config_.width, stream_[config_.layers], w.norm_w,
                       w.norm_b, norm_, normed_);
    const float* const normed = axis_.enter(rows(), config_.width, normed_);
    multiply(rows(), vocabulary(), config_.width, 1.0f, {normed, config_.width},
             {w.token, config_.width, true}, 0.0f, logits_, vocabulary());
    return normed;
  }

  void carve(Arena& arena) {
    const std::size_t heads = config_.own_heads().size;
    shape_ = {batch_,
              config_.context,
              heads,
              config_.width,
              heads * config_.head_width(),
              config_.own_hidden().size};
    const std::size_t stream_rows = axis_.own_rows(rows());
    const std::size_t elements = stream_rows * config_.width;
    stream_.clear();
    for (std::size_t i = 0; i <= config_.layers; ++i) stream_.push_back(arena.take(elements));
    activations_.clear();
    const std::size_t kept = recompute_ ? 1 : config_.layers;
    for (std::size_t i = 0; i < kept; ++i) {
      activations_.push_back(BlockActivations::carve(arena, shape_, stream_rows));
    }
    scratch_ = BlockScratch::carve(arena, shape_);
    norm_ = {arena.take(stream_rows), arena.take(stream_rows)};
    normed_ = arena.take(elements);
    gradient_ = arena.take(elements);
    logits_ = arena.take(rows() * vocabulary());
    units_.carve(arena);
  }

  Config config_;
  std::size_t batch_;
  bool recompute_;
  Axis axis_;
  UnitScratch<P> units_;
  Arena arena_;
  BlockShape shape_{};
  std::vector<float*> stream_;  // the residual stream: block i reads [i] and writes [i + 1]
  std::vector<BlockActivations> activations_;
  BlockScratch scratch_{};
  NormStatistics norm_{};
  float* normed_ = nullptr;
  float* gradient_ = nullptr;  // of the residual stream, at the place where backward stands
  float* logits_ = nullptr;
  LossSum loss_;
};

}  // namespace gpt
