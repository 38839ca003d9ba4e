// Words of device memory that streams write and wait for by themselves, without a kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tessera/cuda/error.hpp"

namespace tessera::detail {

/// Memory operations of streams. They are functions of the driver, which are asked for at run time
/// so that programs need not link it; graphs record them too.
class StreamFlags {
 public:
  StreamFlags()
      : write_(entry<Operation>("cuStreamWriteValue32")),
        wait_(entry<Operation>("cuStreamWaitValue32")) {}

  /// Whether the driver has them.
  bool available() const { return write_ != nullptr && wait_ != nullptr; }

  /// Behind what the stream holds, and visible after its writes. `flag` may be a peer's.
  void raise(cudaStream_t stream, void* flag) const { write(stream, flag, 1); }
  /// Holds the stream back until the flag is up, and takes it down.
  void take(cudaStream_t stream, void* flag) const {
    check(wait_(stream, address(flag), 1, CU_STREAM_WAIT_VALUE_AND), "waiting for a peer's flag");
    write(stream, flag, 0);
  }

 private:
  using Operation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

  template <class F>
  static F entry(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return reinterpret_cast<F>(function);
  }
  static CUdeviceptr address(void* flag) { return reinterpret_cast<CUdeviceptr>(flag); }
  static void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    // The codes are the runtime's where both have one.
    check_cuda(static_cast<cudaError_t>(result), what);
  }
  void write(cudaStream_t stream, void* flag, cuuint32_t value) const {
    check(write_(stream, address(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT), "writing a flag");
  }

  Operation write_;
  Operation wait_;
};

}  // namespace tessera::detail
