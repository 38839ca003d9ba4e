// The model on one GPU, a layer at a time: what a trainer calls inside its leases.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "activations.hpp"
#include "attention.hpp"
#include "config.hpp"
#include "matmul.hpp"
#include "weights.hpp"

namespace llama {

struct TransformerOptions {
  /// Attention and products give the same bits in every run with the same algorithms.
  bool deterministic = false;
  /// Gradient buffers will be added to, so that those products are tuned too.
  bool accumulates = false;
  /// The most documents of a batch, between which attention must not cross; 0: none is looked for.
  /// RoPE's positions stay those in the sequence, as attention sees their differences alone.
  std::size_t documents = 0;
  MatmulTuning tuning;
};

/// Calls enqueue on one stream and return; weights and gradients are device memory, those of a
/// layer its own. T is float or tessera::bf16. Nothing is allocated after allocate().
template <class T>
class Transformer {
 public:
  /// Chooses the algorithms, in passing memory: before the training state takes its place.
  Transformer(const Config& config, std::size_t batch, std::size_t sequence,
              const TransformerOptions& options, cudaStream_t stream);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  const AttentionShape& shape() const { return shape_; }
  /// Before what follows: memory that activations may lie in beside their own.
  void borrow(LentMemory lent) { lent_ = std::move(lent); }
  /// What activations take when each layer computes this again.
  std::size_t bytes(const std::vector<Recompute>& recompute) const;
  /// The least recomputation that takes at most `budget` bytes; empty if none does.
  std::vector<Recompute> choose(std::size_t budget) const;
  void allocate(std::vector<Recompute> recompute);
  const std::vector<Recompute>& recompute() const { return a_.recompute; }
  /// What the library chose for products and attention, a line each.
  std::vector<std::string> choices() const;

  /// The batch of the calls that follow: rows() tokens and the tokens that follow them (below 0:
  /// counts nothing), in pinned memory that stays as it is until the stream has passed.
  /// `documents`: FusedAttention::set_documents'; null where the options have none.
  void upload(const std::int32_t* tokens, const std::int32_t* targets,
              const std::int32_t* documents = nullptr);

  void embed_forward(const T* table);
  void layer_forward(std::size_t layer, const LayerWeights<T>& weights);
  /// `scale`: what each token's loss counts, 1 / tokens for a mean.
  void head_forward_backward(const HeadWeights<T>& weights, const HeadGradients<T>& gradients,
                             float scale);
  /// The losses alone.
  void head_loss(const HeadWeights<T>& weights);
  void layer_backward(std::size_t layer, const LayerWeights<T>& weights,
                      const LayerGradients<T>& gradients);
  void embed_backward(const Gradient<T>& table);

  /// Copies what the losses since the last call add up to into pinned memory, and starts again.
  void take_loss(double* pinned);

 private:
  void linear(Product product, std::size_t in, std::size_t out, const void* left, const void* right,
              T* result, const T* added = nullptr);
  void linear_gradient(std::size_t in, std::size_t out, const T* out_gradient, const T* x,
                       const Gradient<T>& gradient);
  void project(const HeadWeights<T>& weights, float scale);
  // Up to what the feed-forward network's products need; `normed` and `hidden` take what the layer
  // does not keep.
  void activate(std::size_t layer, const LayerWeights<T>& weights, bool all);

  Config config_;
  AttentionShape shape_;
  cudaStream_t stream_;
  Matmuls matmuls_;
  Attention<T> attention_;
  DeviceArena arena_;
  Activations<T> a_;
  LentMemory lent_;
};

}  // namespace llama
