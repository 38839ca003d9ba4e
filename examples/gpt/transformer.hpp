// The model, one unit at a time.
//
// A trainer that shards its weights has them only between a lease's begin and end, so every call
// takes the weights (and, backward, the gradients) of the unit it works on and keeps none of them.
// The order is embed_forward, block_forward of each layer, head_forward_backward, block_backward
// of each layer from the last, embed_backward. Activations are allocated once, by the constructor.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "block.hpp"
#include "element.hpp"
#include "unit_scratch.hpp"

namespace gpt {

template <Element P>
class Transformer {
 public:
  /// `batch`: the most sequences that one call works on.
  Transformer(const Config& config, std::size_t batch, bool recompute)
      : config_(config), batch_(batch), recompute_(recompute), units_(config) {
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
    embedding_forward(shape_.batch, config_.context, config_.width, tokens, w.token, w.position,
                      stream_[0]);
  }

  void block_forward(std::size_t layer, const BlockWeights<P>& w) {
    gpt::block_forward(shape_, units_.widened(w), stream_[layer], activations(layer),
                       stream_[layer + 1]);
  }

  /// The loss of `targets`, and the gradients of `scale` times its sum.
  LossSum head_forward_backward(const HeadWeights<P>& w, const HeadGradients<P>& g,
                                const Token* targets, float scale) {
    const HeadWeights<const float> wide = units_.widened(w);
    project(wide);
    const LossSum loss = cross_entropy(rows(), config_.vocabulary, targets, scale, logits_);
    const HeadGradients<float> gradients = units_.targets(g);
    const LinearShape shape = head();
    linear_weight_gradient(shape, logits_, normed_, gradients.token);
    linear_input_gradient(shape, logits_, wide.token, scratch_.narrow);
    std::memset(gradient_, 0, rows() * config_.width * sizeof(float));
    layer_norm_backward(rows(), config_.width, scratch_.narrow, stream_[config_.layers],
                        wide.norm_w, norm_, gradients.norm_w, gradients.norm_b, gradient_);
    units_.deliver(g);
    loss_ += loss;
    return loss;
  }

  /// The weights are those of block_forward's lease, gathered again. A recomputing model runs the
  /// block's forward pass again first, from the one thing that it kept: the block's input.
  void block_backward(std::size_t layer, const BlockWeights<P>& w, const BlockGradients<P>& g) {
    const BlockWeights<const float> wide = units_.widened(w);
    if (recompute_) block_activate(shape_, wide, stream_[layer], activations(layer));
    gpt::block_backward(shape_, wide, units_.targets(g), stream_[layer], activations(layer),
                        scratch_, gradient_);
    units_.deliver(g);
  }

  /// Where the trainer runs this after the head in one micro-step, the token table's gradient has
  /// the head's part already and g.token.accumulate must be true.
  void embed_backward(const EmbeddingGradients<P>& g, const Token* tokens) {
    const EmbeddingGradients<float> gradients = units_.targets(g);
    embedding_backward(shape_.batch, config_.context, config_.width, config_.vocabulary, tokens,
                       gradient_, gradients.token, gradients.position);
    units_.deliver(g);
  }

  /// The loss alone, for validation.
  LossSum head_loss(const HeadWeights<P>& w, const Token* targets) {
    project(units_.widened(w));
    const LossSum loss = cross_entropy(rows(), config_.vocabulary, targets, 1.0f, logits_);
    loss_ += loss;
    return loss;
  }

  /// What the losses since the last call add up to.
  LossSum take_loss() { return std::exchange(loss_, {}); }

  /// logits[rows(), vocabulary], for sampling. Valid until the next call.
  const float* head_logits(const HeadWeights<P>& w) {
    project(units_.widened(w));
    return logits_;
  }

 private:
  LinearShape head() const { return {rows(), config_.width, config_.vocabulary}; }

  const BlockActivations& activations(std::size_t layer) const {
    return activations_[recompute_ ? 0 : layer];
  }

  void project(const HeadWeights<const float>& w) {
    layer_norm_forward(rows(), config_.width, stream_[config_.layers], w.norm_w, w.norm_b, norm_,
                       normed_);
    multiply(rows(), config_.vocabulary, config_.width, 1.0f, {normed_, config_.width},
             {w.token, config_.width, true}, 0.0f, logits_, config_.vocabulary);
  }

  void carve(Arena& arena) {
    shape_ = {batch_, config_.context, config_.heads, config_.width};
    const std::size_t elements = rows() * config_.width;
    stream_.clear();
    for (std::size_t i = 0; i <= config_.layers; ++i) stream_.push_back(arena.take(elements));
    activations_.clear();
    const std::size_t kept = recompute_ ? 1 : config_.layers;
    for (std::size_t i = 0; i < kept; ++i) {
      activations_.push_back(BlockActivations::carve(arena, shape_));
    }
    scratch_ = BlockScratch::carve(arena, shape_);
    norm_ = {arena.take(rows()), arena.take(rows())};
    normed_ = arena.take(elements);
    gradient_ = arena.take(elements);
    logits_ = arena.take(rows() * config_.vocabulary);
    units_.carve(arena);
  }

  Config config_;
  std::size_t batch_;
  bool recompute_;
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
