// In-order streams, events and timestamps of the CUDA backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <exception>
#include <utility>

#include "tessera/backend/backend.hpp"
#include "tessera/cuda/error.hpp"

namespace tessera {

/// One of a rank's streams. A collective that fails on it keeps its exception here, for
/// CudaRuntime::check, and later collectives on it are skipped.
struct CudaStream {
  cudaStream_t handle = nullptr;
  StreamKind kind = StreamKind::compute;
  int device = 0;
  std::exception_ptr failure;

  void fail(std::exception_ptr cause) {
    if (!failure) failure = std::move(cause);
  }
};

/// Makes a device the calling thread's, and puts back the one before.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device) {
    detail::check_cuda(cudaGetDevice(&before_), "reading the current device");
    changed_ = before_ != device;
    if (changed_) detail::check_cuda(cudaSetDevice(device), "choosing the device");
  }
  ~CudaDeviceScope() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// An event, made at its first record on the device of the stream it is recorded on.
template <unsigned flags>
class CudaEventOf {
 public:
  CudaEventOf() = default;
  ~CudaEventOf() {
    if (handle_ != nullptr) (void)cudaEventDestroy(handle_);
  }
  CudaEventOf(const CudaEventOf&) = delete;
  CudaEventOf& operator=(const CudaEventOf&) = delete;

  /// Null until it was made.
  cudaEvent_t handle() const { return handle_; }
  cudaEvent_t make(int device) {
    if (handle_ == nullptr) {
      const CudaDeviceScope scope(device);
      detail::check_cuda(cudaEventCreateWithFlags(&handle_, flags), "making an event");
    }
    return handle_;
  }

  void swap(CudaEventOf& other) {
    std::swap(handle_, other.handle_);
    std::swap(capture, other.capture);
  }

  /// The capture in which it was recorded last; 0 for a record that was executed.
  std::uint64_t capture = 0;

 private:
  cudaEvent_t handle_ = nullptr;
};

using CudaEvent = CudaEventOf<cudaEventDisableTiming>;
using CudaMark = CudaEventOf<cudaEventDefault>;

}  // namespace tessera
