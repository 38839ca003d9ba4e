// How kernels are launched: declared for every compiler, defined for nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/cuda/error.hpp"

/// Launchers are called from units that g++ compiled: they must exist as functions of their own,
/// not inlined nor specialised away.
#if defined(__clang__)
#define TESSERA_CUDA_LAUNCHER __attribute__((noinline, used))
#else
#define TESSERA_CUDA_LAUNCHER __attribute__((noipa))
#endif

namespace tessera::detail {

inline constexpr unsigned kCudaThreads = 256;

#if defined(__CUDACC__)
/// Launches `kernel` over `blocks` blocks; nothing for none.
template <class... Parameters, class... Arguments>
void launch_cuda(const char* what, cudaStream_t stream, std::uint64_t blocks, unsigned threads,
                 void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (blocks == 0) return;
  if (blocks > 0x7fffffffu) fail("tessera: CUDA: ", what, ": ", blocks, " blocks are too many");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}
#endif

}  // namespace tessera::detail
