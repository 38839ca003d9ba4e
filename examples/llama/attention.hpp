// Causal attention over packed queries, keys and values: grouped-query attention of one batch of
// sequences of equal length, or of the documents within them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <tessera/exact/bf16.hpp>

#include "device_arena.hpp"

namespace llama {

struct AttentionShape {
  std::size_t batch, sequence, heads, kv_heads, head_dim;
  /// The most in a batch; no row sees another's document. 0: sequences are not divided.
  std::size_t documents = 0;

  std::size_t stride() const { return (heads + 2 * kv_heads) * head_dim; }
  std::size_t rows() const { return batch * sequence; }
  /// The logarithms of the softmax's sums, which backward needs: one a head and row.
  std::size_t statistics() const { return heads * rows(); }
  /// Of forward and backward, the masked half left out; of sequences that are not divided.
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

  /// The documents of the calls that follow, where AttentionShape::documents is not 0: its number
  /// + 1 ascending rows from 0 to the last, of which two neighbours are a document's bounds; none
  /// spans two sequences. In pinned memory that stays as it is until the stream has passed. Before
  /// the first call sequences are whole.
  void set_documents(const std::int32_t* starts);
  /// Times cuDNN's plans and keeps the fastest of each direction. Takes passing memory, and waits.
  void tune();
  /// Of the plans in use: after tune().
  std::size_t workspace_bytes() const;
  /// What was chosen, with times where they were taken.
  std::string choice() const;

  /// qkv[rows, stride]: queries of all heads, keys, values; out[rows, heads * head_dim];
  /// statistics[batch, heads, sequence], or [rows, heads] with documents.
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
  void set_documents(const std::int32_t* starts);
  void tune() {}
  std::size_t workspace_bytes() const;
  std::string choice() const { return "plain fp32 kernels"; }
  void forward(const Element* qkv, Element* out, float* statistics, void* workspace);
  void backward(const Element* qkv, const Element* out, const float* statistics,
                const Element* out_gradient, Element* qkv_gradient, void* workspace);

 private:
  cudaStream_t stream_;
  AttentionShape shape_;
  DeviceArena arena_;
  std::int32_t* starts_ = nullptr;     ///< [documents + 1]
  std::int32_t* first_row_ = nullptr;  ///< [rows], of each row's document
};

template <class T>
using Attention = std::conditional_t<std::is_same_v<T, float>, PlainAttention, FusedAttention>;

}  // namespace llama
