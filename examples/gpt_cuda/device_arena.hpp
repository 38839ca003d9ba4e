// One allocation of device memory that is carved into arrays once, when the model is built.
#pragma once

#include <cstddef>
#include <utility>

#include "check.hpp"

namespace gpt::cuda {

/// As gpt::Arena: carve twice with the same code, first an empty one that counts.
///
/// The memory comes from the stream-ordered allocator, and so is the stream's. It is not
/// cudaMalloc, whose calls the program counts as the library's.
class DeviceArena {
 public:
  DeviceArena() = default;
  DeviceArena(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
    require(cudaMallocAsync(&memory_, bytes, stream), "allocating the model's activations");
  }
  DeviceArena(DeviceArena&& other) noexcept { swap(other); }
  DeviceArena& operator=(DeviceArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceArena() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
  }

  template <class T = float>
  T* take(std::size_t count) {
    const std::size_t offset = used_;
    used_ += (count * sizeof(T) + kStep - 1) / kStep * kStep;
    if (memory_ == nullptr) return nullptr;
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

  std::size_t used() const { return used_; }

 private:
  // As cudaMalloc aligns: cuBLAS looks at alignments when it chooses a kernel.
  static constexpr std::size_t kStep = 256;

  void swap(DeviceArena& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(used_, other.used_);
    std::swap(stream_, other.stream_);
  }

  void* memory_ = nullptr;
  std::size_t used_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace gpt::cuda
