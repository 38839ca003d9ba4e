// A kernel that holds its stream back: for tests of what must not depend on time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/cuda/launch.hpp"

namespace tessera::detail {

/// Holds the stream back by `nanoseconds`. A template, so that a header may define it.
template <class Unit = std::uint64_t>
TESSERA_CUDA_LAUNCHER void launch_delay(cudaStream_t stream, Unit nanoseconds);

#if defined(__CUDACC__)

template <class Unit>
__global__ void delay_kernel(Unit nanoseconds) {
  const auto now = [] {
    std::uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  };
  const std::uint64_t begin = now();
  while (now() - begin < nanoseconds) __nanosleep(1000);
}

template <class Unit>
void launch_delay(cudaStream_t stream, Unit nanoseconds) {
  launch_cuda("a delay", stream, 1, 1, delay_kernel<Unit>, nanoseconds);
}

#endif

}  // namespace tessera::detail
