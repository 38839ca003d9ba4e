// One allocation of device memory, carved into arrays once.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cuda_check.hpp"

namespace llama {

/// Carve twice with the same code: first an empty one, which counts, then one of that size.
class DeviceArena {
 public:
  DeviceArena() = default;
  explicit DeviceArena(std::size_t bytes) {
    require(cudaMalloc(&memory_, bytes), "allocating the activations");
  }
  DeviceArena(DeviceArena&& other) noexcept { swap(other); }
  DeviceArena& operator=(DeviceArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceArena() {
    if (memory_ != nullptr) cudaFree(memory_);
  }

  template <class T>
  T* take(std::size_t count) {
    const std::size_t offset = used_;
    used_ += rounded(count * sizeof(T));
    most_ = std::max(most_, used_);
    if (memory_ == nullptr) return nullptr;
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

  /// What an array of so many bytes takes.
  static std::size_t rounded(std::size_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

  /// What is carved between a mark and going back to it shares its place with what follows.
  std::size_t mark() const { return used_; }
  void back_to(std::size_t mark) { used_ = mark; }
  /// What follows lies beyond all of them.
  void settle() { used_ = most_; }
  /// The most that was in use at once.
  std::size_t most_used() const { return most_; }

 private:
  static constexpr std::size_t kStep = 256;  // cuBLAS chooses kernels by alignment

  void swap(DeviceArena& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(used_, other.used_);
    std::swap(most_, other.most_);
  }

  void* memory_ = nullptr;
  std::size_t used_ = 0;
  std::size_t most_ = 0;
};

}  // namespace llama
