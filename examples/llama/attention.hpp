// Causal attention over packed queries, keys and values: grouped-query attention of one batch of
// sequences of equal length.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <tessera/exact/bf16.hpp>

namespace llama {

struct AttentionShape {
  std::size_t batch, sequence, heads, kv_heads, head_dim;

  std::size_t stride() const { return (heads + 2 * kv_heads) * head_dim; }
  std::size_t rows() const { return batch * sequence; }
  /// The logarithms of the softmax's sums, which backward needs: one a head and row.
  std::size_t statistics() const { return heads * rows(); }
  /// Of forward and backward, the masked half left out.
  double flops() const {
    return 7.0 * static_cast<double>(batch * heads * head_dim) * static_cast<double>(sequence) *
           static_cast<double>(sequence);
  }
};

/// By cuDNN's fused kernels: Dao et al., "FlashAttention", NeurIPS 2022. bf16 with fp32 sums.
class FusedAttention {
 public:
  using Element = tessera::bf16;

  /// `deterministic`: backward adds up in a fixed order, at the price of workspace.
  FusedAttention(cudaStream_t stream, const AttentionShape& shape, bool deterministic);
  ~FusedAttention();
  FusedAttention(const FusedAttention&) = delete;
  FusedAttention& operator=(const FusedAttention&) = delete;

  /// Times cuDNN's plans and keeps the fastest of each direction. Takes passing memory, and waits.
  void tune();
  /// Of the plans in use: after tune().
  std::size_t workspace_bytes() const;
  /// What was chosen, with times where they were taken.
  std::string choice() const;

  /// qkv[rows, stride]: queries of all heads, keys, values; out[rows, heads * head_dim].
  void forward(const Element* qkv, Element* out, float* statistics, void* workspace);
  /// qkv_gradient[rows, stride] is written whole.
  void backward(const Element* qkv, const Element* out, const float* statistics,
                const Element* out_gradient, Element* qkv_gradient, void* workspace);

 private:
  struct Graphs;
  std::unique_ptr<Graphs> graphs_;
};

/// The same in fp32 by plain kernels, to compare with: quick for short sequences only.
class PlainAttention {
 public:
  using Element = float;

  PlainAttention(cudaStream_t stream, const AttentionShape& shape, bool deterministic);
  void tune() {}
  std::size_t workspace_bytes() const;
  std::string choice() const { return "plain fp32 kernels"; }
  void forward(const Element* qkv, Element* out, float* statistics, void* workspace);
  void backward(const Element* qkv, const Element* out, const float* statistics,
                const Element* out_gradient, Element* qkv_gradient, void* workspace);

 private:
  cudaStream_t stream_;
  AttentionShape shape_;
};

template <class T>
using Attention = std::conditional_t<std::is_same_v<T, float>, PlainAttention, FusedAttention>;

}  // namespace llama
