// Tokens on their way to the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

#include "../gpt/token.hpp"
#include "check.hpp"
#include "device_arena.hpp"

namespace gpt::cuda {

/// Copies from pinned memory, so that the caller does not wait for the stream. There are several
/// such buffers in turn: one is only waited for when that many copies are still under way.
class TokenUpload {
 public:
  TokenUpload(cudaStream_t stream, std::size_t most) : stream_(stream), most_(most) {
    for (cudaEvent_t& copied : copied_) {
      require(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming | cudaEventBlockingSync),
              "cudaEventCreate");
    }
    void* memory = nullptr;
    require(cudaMallocHost(&memory, kBuffers * most * sizeof(Token)), "cudaMallocHost");
    pinned_ = static_cast<Token*>(memory);
  }
  TokenUpload(const TokenUpload&) = delete;
  TokenUpload& operator=(const TokenUpload&) = delete;
  ~TokenUpload() {
    for (const cudaEvent_t copied : copied_) {
      cudaEventSynchronize(copied);
      cudaEventDestroy(copied);
    }
    cudaFreeHost(pinned_);
  }

  void carve(DeviceArena& arena) { device_ = arena.take<Token>(most_); }

  /// Where the tokens are for the kernels that are enqueued until the next upload. The caller's
  /// array is free again when this returns.
  const Token* operator()(const Token* tokens, std::size_t count) {
    const cudaEvent_t copied = copied_[next_];
    Token* const pinned = pinned_ + next_ * most_;
    next_ = (next_ + 1) % kBuffers;
    require(cudaEventSynchronize(copied), "waiting for an earlier copy of tokens");
    std::memcpy(pinned, tokens, count * sizeof(Token));
    require(
        cudaMemcpyAsync(device_, pinned, count * sizeof(Token), cudaMemcpyHostToDevice, stream_),
        "copying tokens");
    require(cudaEventRecord(copied, stream_), "cudaEventRecord");
    return device_;
  }

 private:
  static constexpr std::size_t kBuffers = 8;  // a micro-step takes three

  cudaStream_t stream_;
  std::size_t most_;
  std::array<cudaEvent_t, kBuffers> copied_{};
  std::size_t next_ = 0;
  Token* pinned_ = nullptr;
  Token* device_ = nullptr;
};

}  // namespace gpt::cuda
