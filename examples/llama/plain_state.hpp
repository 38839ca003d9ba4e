// Training state without tessera: flat buffers on one GPU, a norm and an AdamW kernel. What a
// trainer that shards nothing would write, to measure what sharding costs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>
#include <tessera/exact/bf16.hpp>

#include "weights.hpp"

namespace llama {

struct PlainAdamW {
  float learning_rate, beta1, beta2, epsilon, weight_decay, clip;
};

/// bf16 weights and gradients, fp32 masters and moments.
class PlainState {
 public:
  explicit PlainState(cudaStream_t stream) : stream_(stream) {}
  ~PlainState();
  PlainState(const PlainState&) = delete;
  PlainState& operator=(const PlainState&) = delete;

  struct Tensor {
    std::size_t offset, size;
    bool decays;
    FirstValue first;
  };
  /// Returns the tensor's number. Before allocate().
  std::size_t add(std::size_t size, bool decays, FirstValue first);
  void allocate();

  tessera::bf16* weight(std::size_t tensor) const;
  tessera::bf16* gradient(std::size_t tensor) const;
  /// Enqueues norm, clipping and update of everything.
  void step(const PlainAdamW& rule);
  std::size_t bytes() const { return bytes_; }

 private:
  cudaStream_t stream_;
  std::vector<Tensor> tensors_;
  std::size_t elements_ = 0;
  std::size_t bytes_ = 0;
  int steps_ = 0;
  void* memory_ = nullptr;
  tessera::bf16* weights_ = nullptr;
  tessera::bf16* gradients_ = nullptr;
  float* masters_ = nullptr;
  float* first_ = nullptr;
  float* second_ = nullptr;
  double* partials_ = nullptr;
  float* clip_ = nullptr;
  std::uint8_t* decays_ = nullptr;  ///< by kBlock elements
};

}  // namespace llama
