// The model on a GPU, one unit at a time: gpt::Transformer with its kernels on one stream.
//
// Calls enqueue and return. Weights and gradients are device memory that a lease hands out for this
// stream. Only take_loss and head_logits wait. Nothing is allocated after the constructor.
#pragma once

#include <cstddef>
#include <vector>

#include "../gpt/config.hpp"
#include "../gpt/unit_scratch.hpp"
#include "block.cuh"
#include "cross_entropy.cuh"
#include "embedding.cuh"
#include "loss_total.cuh"
#include "readback.hpp"
#include "token_upload.hpp"

namespace gpt {

template <Element P>
class CudaTransformer {
 public:
  /// On the thread's current device. `batch`: the most sequences that one call works on.
  CudaTransformer(const Config& config, std::size_t batch, bool recompute, cudaStream_t stream)
      : config_(config),
        batch_(batch),
        recompute_(recompute),
        queue_(stream),
        units_(config, cuda::DeviceConversion{stream}),
        upload_(stream, batch * config.context),
        loss_(stream),
        logits_on_host_(batch * config.context * config.vocabulary) {
    cuda::DeviceArena counted;
    carve(counted);
    arena_ = cuda::DeviceArena(counted.used(), stream);
    carve(arena_);
  }
  CudaTransformer(const CudaTransformer&) = delete;
  CudaTransformer& operator=(const CudaTransformer&) = delete;
  /// What has been enqueued uses the memory that is given back now.
  ~CudaTransformer() { cudaStreamSynchronize(queue_.stream()); }

  /// Work on fewer sequences than the constructor was told, until told otherwise.
  void use_batch(std::size_t batch) { shape_.batch = batch; }
  std::size_t rows() const { return shape_.rows(); }
  /// Device memory that the model takes by itself, cuBLAS' workspace included.
  std::size_t activation_bytes() const { return arena_.used(); }

  void embed_forward(const EmbeddingWeights<P>& w, const Token* tokens) {
    cuda::embedding_forward(queue_, shape_.batch, config_.context, config_.width,
                            upload_(tokens, rows()), w.token, w.position, stream_[0]);
  }

  void block_forward(std::size_t layer, const BlockWeights<P>& w) {
    cuda::block_forward(queue_, shape_, units_.widened(w), stream_[layer], activations(layer),
                        stream_[layer + 1]);
  }

  /// Adds the loss of `targets` to what take_loss returns; the gradients of `scale` times its sum.
  void head_forward_backward(const HeadWeights<P>& w, const HeadGradients<P>& g,
                             const Token* targets, float scale) {
    const HeadWeights<const float> wide = units_.widened(w);
    project(wide);
    lose(targets, scale);
    const HeadGradients<float> gradients = units_.targets(g);
    const LinearShape shape = head();
    cuda::linear_weight_gradient(queue_, shape, logits_, normed_, gradients.token);
    cuda::linear_input_gradient(queue_, shape, logits_, wide.token, scratch_.narrow);
    cuda::require(
        cudaMemsetAsync(gradient_, 0, rows() * config_.width * sizeof(float), queue_.stream()),
        "clearing the gradient");
    cuda::layer_norm_backward(queue_, rows(), config_.width, scratch_.narrow,
                              stream_[config_.layers], wide.norm_w, norm_, columns_,
                              gradients.norm_w, gradients.norm_b, gradient_);
    units_.deliver(g);
  }

  /// The weights are those of block_forward's lease, gathered again. A recomputing model runs the
  /// block's forward pass again first, from the one thing that it kept: the block's input.
  void block_backward(std::size_t layer, const BlockWeights<P>& w, const BlockGradients<P>& g) {
    const BlockWeights<const float> wide = units_.widened(w);
    if (recompute_) {
      cuda::block_activate(queue_, shape_, wide, stream_[layer], activations(layer));
    }
    cuda::block_backward(queue_, shape_, wide, units_.targets(g), stream_[layer],
                         activations(layer), scratch_, columns_, gradient_);
    units_.deliver(g);
  }

  /// Where the trainer runs this after the head in one micro-step, the token table's gradient has
  /// the head's part already and g.token.accumulate must be true.
  void embed_backward(const EmbeddingGradients<P>& g, const Token* tokens) {
    const EmbeddingGradients<float> gradients = units_.targets(g);
    cuda::embedding_backward(queue_, shape_.batch, config_.context, config_.width,
                             config_.vocabulary, upload_(tokens, rows()), gradient_,
                             gradients.token, gradients.position);
    units_.deliver(g);
  }

  /// The loss alone, for validation; added to what take_loss returns.
  void head_loss(const HeadWeights<P>& w, const Token* targets) {
    project(units_.widened(w));
    lose(targets, 1.0f);
  }

  /// What the losses since the last call add up to. Waits for the stream: once a step is enough.
  LossSum take_loss() { return loss_.take(); }

  /// logits[rows(), vocabulary] on the host, for sampling. Waits. Valid until the next call.
  const float* head_logits(const HeadWeights<P>& w) {
    project(units_.widened(w));
    return logits_on_host_(queue_.stream(), logits_, rows() * config_.vocabulary);
  }

 private:
  LinearShape head() const { return {rows(), config_.width, config_.vocabulary}; }

  const BlockActivations& activations(std::size_t layer) const {
    return activations_[recompute_ ? 0 : layer];
  }

  void project(const HeadWeights<const float>& w) {
    cuda::layer_norm_forward(queue_, rows(), config_.width, stream_[config_.layers], w.norm_w,
                             w.norm_b, norm_, normed_);
    queue_.multiply(rows(), config_.vocabulary, config_.width, 1.0f, {normed_, config_.width},
                    {w.token, config_.width, true}, 0.0f, logits_, config_.vocabulary);
  }

  void lose(const Token* targets, float scale) {
    cuda::cross_entropy(queue_, rows(), config_.vocabulary, upload_(targets, rows()), scale,
                        logits_, loss_.rows());
    loss_.add(rows(), targets);
  }

  void carve(cuda::DeviceArena& arena) {
    shape_ = {batch_, config_.context, config_.heads, config_.width};
    const std::size_t elements = rows() * config_.width;
    stream_.clear();
    for (std::size_t i = 0; i <= config_.layers; ++i) stream_.push_back(arena.take(elements));
    activations_.clear();
    const std::size_t kept = recompute_ ? 1 : config_.layers;
    for (std::size_t i = 0; i < kept; ++i) {
      activations_.push_back(BlockActivations::carve(arena, shape_));
    }
    scratch_ = cuda::BlockScratch::carve(arena, shape_);
    columns_ = cuda::ColumnScratch::carve(arena, rows(), shape_.hidden());
    norm_ = {arena.take(rows()), arena.take(rows())};
    normed_ = arena.take(elements);
    gradient_ = arena.take(elements);
    logits_ = arena.take(rows() * config_.vocabulary);
    units_.carve(arena);
    upload_.carve(arena);
    loss_.carve(arena, rows());
    queue_.carve(arena);
  }

  Config config_;
  std::size_t batch_;
  bool recompute_;
  cuda::DeviceArena arena_;  // before what works in it, so that it ends last
  cuda::Queue queue_;
  UnitScratch<P, cuda::DeviceConversion> units_;
  cuda::TokenUpload upload_;
  cuda::LossTotal loss_;
  cuda::Readback<float> logits_on_host_;
  BlockShape shape_{};
  std::vector<float*> stream_;  // the residual stream: block i reads [i] and writes [i + 1]
  std::vector<BlockActivations> activations_;
  cuda::BlockScratch scratch_{};
  cuda::ColumnScratch columns_;
  NormStatistics norm_{};
  float* normed_ = nullptr;
  float* gradient_ = nullptr;  // of the residual stream, at the place where backward stands
  float* logits_ = nullptr;
};

}  // namespace gpt
