// A function of an index on the device: what takes few threads, such as the decisions of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/cuda/launch.hpp"

namespace tessera::detail {

/// f(0) ... f(n - 1), a thread each.
template <class F>
TESSERA_CUDA_LAUNCHER void launch_for_each(cudaStream_t stream, std::uint64_t n, const F& f);

#if defined(__CUDACC__)

inline constexpr unsigned kForEachThreads = 64;

template <class F>
__global__ void for_each_kernel(std::uint64_t n, F f) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kForEachThreads} + threadIdx.x;
  if (i < n) f(i);
}

template <class F>
void launch_for_each(cudaStream_t stream, std::uint64_t n, const F& f) {
  launch_cuda("a kernel over indices", stream, (n + kForEachThreads - 1) / kForEachThreads,
              n == 1 ? 1 : kForEachThreads, for_each_kernel<F>, n, f);
}

#endif

}  // namespace tessera::detail
