// Streams whose handle means another stream on another thread.
#pragma once

#include <cuda_runtime_api.h>

#include "tessera/cuda/error.hpp"

namespace tessera::detail {

/// NCCL may enqueue from a thread of its own, for which cudaStreamPerThread, and the null stream of
/// programs that are compiled so, is not the caller's. Work for such a stream goes to this one,
/// which starts after what the caller's holds and which the caller's waits for.
class NcclDetour {
 public:
  NcclDetour() = default;
  NcclDetour(const NcclDetour&) = delete;
  NcclDetour& operator=(const NcclDetour&) = delete;
  ~NcclDetour() {
    if (passed_) (void)cudaEventDestroy(passed_);
    if (stream_) (void)cudaStreamDestroy(stream_);
  }

  static bool is_needed(cudaStream_t stream) {
    return stream == nullptr || stream == cudaStreamPerThread;
  }
  /// The stream that NCCL is given for the caller's. The current device is the communicator's.
  cudaStream_t enter(cudaStream_t callers) {
    if (!is_needed(callers)) return callers;
    if (!stream_) {
      check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    }
    if (!passed_) {
      check_cuda(cudaEventCreateWithFlags(&passed_, cudaEventDisableTiming), "making an event");
    }
    order(callers, stream_);
    return stream_;
  }
  /// After the last of the work.
  void leave(cudaStream_t callers) {
    if (is_needed(callers)) order(stream_, callers);
  }

 private:
  // One event serves both ways: a wait is for the latest record before it.
  void order(cudaStream_t first, cudaStream_t second) {
    check_cuda(cudaEventRecord(passed_, first), "recording an event");
    check_cuda(cudaStreamWaitEvent(second, passed_, 0), "waiting for an event");
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t passed_ = nullptr;
};

}  // namespace tessera::detail
