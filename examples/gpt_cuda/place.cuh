// Which element or row a thread works on, and what the lanes of a warp compute together.
#pragma once

#include <cstddef>

#include "launch.cuh"

namespace gpt::cuda {

/// The element of a kernel that launch_each started.
__device__ inline std::size_t this_element() {
  return std::size_t{blockIdx.x} * kThreads + threadIdx.x;
}
/// The row of a kernel that launch_rows started: the same for all lanes of a warp.
__device__ inline std::size_t this_row() {
  return std::size_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
}
__device__ inline unsigned this_lane() { return threadIdx.x % kWarp; }

/// The sum over the warp, in every lane. Lanes are folded in a fixed order, and each pair of them
/// adds the same two numbers: all get the same bits, in every run.
__device__ inline float warp_sum(float value) {
  for (unsigned other = kWarp / 2; other > 0; other /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, static_cast<int>(other));
  }
  return value;
}

__device__ inline float warp_max(float value) {
  for (unsigned other = kWarp / 2; other > 0; other /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, static_cast<int>(other)));
  }
  return value;
}

}  // namespace gpt::cuda
