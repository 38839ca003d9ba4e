// What the kernels share: eight elements a thread, sums over a block, and launching.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <tessera/exact/bf16.hpp>

#include "cuda_check.hpp"

namespace llama {

inline constexpr int kPack = 8;
inline constexpr unsigned kWarp = 32;

__device__ inline float widened(float value) { return value; }
__device__ inline float widened(tessera::bf16 value) { return tessera::to_float(value); }

template <class T>
__device__ inline T narrowed(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return {bits};
  }
}

/// Eight neighbours in memory, at a multiple of 16 bytes.
template <class T>
struct Pack {
  float x[kPack];

  static __device__ Pack load(const T* from) {
    struct alignas(16) Raw {
      T x[kPack];
    };
    const Raw raw = *reinterpret_cast<const Raw*>(from);
    Pack pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.x[i] = widened(raw.x[i]);
    return pack;
  }
  __device__ void store(T* to) const {
    struct alignas(16) Raw {
      T x[kPack];
    } raw;
#pragma unroll
    for (int i = 0; i < kPack; ++i) raw.x[i] = narrowed<T>(x[i]);
    *reinterpret_cast<Raw*>(to) = raw;
  }
  __device__ float& operator[](int i) { return x[i]; }
  __device__ float operator[](int i) const { return x[i]; }
};

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

/// The sum over all threads of a block, on each of them; warps are whole. `shared`: 32 floats,
/// which may be used again after the next __syncthreads().
__device__ inline float block_sum(float value, float* shared) {
  value = warp_sum(value);
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_sum(lane < blockDim.x / kWarp ? shared[lane] : 0.0f);
}

/// Arguments become the kernel's own parameter types first: CUDA passes them by address.
template <class... Parameters>
void launch(const char* what, cudaStream_t stream, void (*kernel)(Parameters...),
            std::size_t blocks, std::size_t threads,
            std::type_identity_t<Parameters>... arguments) {
  if (blocks == 0) return;
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  require(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(threads)), addresses, 0, stream),
      what);
}

constexpr std::size_t divided_up(std::size_t value, std::size_t by) {
  return (value + by - 1) / by;
}

}  // namespace llama

/// For the kinds of element that the trainer is made for.
#define LLAMA_FOR_ELEMENTS(instantiate) instantiate(float) instantiate(tessera::bf16)
