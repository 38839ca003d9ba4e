// Words of device memory that streams write and wait for by themselves, without a kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tessera/cuda/error.hpp"

namespace tessera::detail {

/// Memory operations of streams, a list of which is enqueued at once. They are a function of the
/// driver, which is asked for at run time so that programs need not link it; graphs record it too.
class StreamFlags {
 public:
  class Operations {
   public:
    /// Visible after what the stream wrote before. `flag` may be a peer's.
    Operations& raise(void* flag) {
      write(flag, 1);
      return *this;
    }
    /// Holds the stream back until the flag is up, and takes it down.
    Operations& take(void* flag) {
      CUstreamBatchMemOpParams& wait = all_.emplace_back();
      wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      wait.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
      wait.waitValue.value = 1;
      wait.waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
      write(flag, 0);
      return *this;
    }

   private:
    friend class StreamFlags;
    void write(void* flag, cuuint32_t value) {
      CUstreamBatchMemOpParams& write = all_.emplace_back();
      write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      write.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
      write.writeValue.value = value;
      write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    }
    std::vector<CUstreamBatchMemOpParams> all_;
  };

  StreamFlags() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function,
                                                               12000, cudaEnableDefault, &found);
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess) {
      enqueue_ = reinterpret_cast<Enqueue>(function);
    } else {
      (void)cudaGetLastError();
    }
  }

  /// Whether the driver has them.
  bool available() const { return enqueue_ != nullptr; }
  void enqueue(cudaStream_t stream, Operations& operations) const {
    std::vector<CUstreamBatchMemOpParams>& all = operations.all_;
    for (std::size_t first = 0; first < all.size(); first += kMost) {
      const auto count = static_cast<unsigned>(std::min(kMost, all.size() - first));
      const CUresult result = enqueue_(stream, count, all.data() + first, 0);
      // The codes are the runtime's where both have one.
      if (result != CUDA_SUCCESS) check_cuda(static_cast<cudaError_t>(result), "flags of a peer");
    }
  }

 private:
  using Enqueue = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
  static constexpr std::size_t kMost = 256;  // the driver's bound

  Enqueue enqueue_ = nullptr;
};

}  // namespace tessera::detail
