// What the host reads back from the device.
#pragma once

#include <cstddef>

#include "check.hpp"

namespace gpt::cuda {

/// A pinned array of the host that a stream copies into.
template <class T>
class Readback {
 public:
  explicit Readback(std::size_t most) {
    void* memory = nullptr;
    require(cudaMallocHost(&memory, most * sizeof(T)), "cudaMallocHost");
    data_ = static_cast<T*>(memory);
  }
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;
  ~Readback() { cudaFreeHost(data_); }

  /// Waits for the stream. Valid until the next call.
  const T* operator()(cudaStream_t stream, const T* device, std::size_t count) {
    require(cudaMemcpyAsync(data_, device, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
            "copying to the host");
    require(cudaStreamSynchronize(stream), "waiting for the model");
    return data_;
  }

 private:
  T* data_ = nullptr;
};

}  // namespace gpt::cuda
