#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device.hpp"

namespace limits {
namespace kernel {

/// Uniform in [-0.5, 0.5). How much power a multiplication takes depends on its data.
template <class T>
__global__ void random_fill(T* values, std::uint64_t count, std::uint64_t seed) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += step) {
    std::uint64_t x = (i + seed) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    values[i] = T(static_cast<float>(x >> 40) * 0x1p-24f - 0.5f);
  }
}

}  // namespace kernel

/// Fills all of the memory with random T.
template <class T>
void random_fill(const DeviceMemory& memory, std::uint64_t seed, cudaStream_t stream) {
  kernel::random_fill<<<2048, 256, 0, stream>>>(static_cast<T*>(memory.data()),
                                                memory.bytes() / sizeof(T), seed << 40);
  check(cudaGetLastError());
}

}  // namespace limits
