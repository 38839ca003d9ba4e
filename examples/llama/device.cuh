// What the kernels share: eight elements a thread, sums over a block, and launching.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
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

/// Eight neighbours as they lie in memory, at a multiple of 16 bytes: what waits in registers or in
/// shared memory takes half the room of a Pack where elements have 16 bits.
template <class T>
struct RawPack {
  static constexpr int kParts = kPack * sizeof(T) / sizeof(uint4);
  uint4 parts[kParts];

  static __device__ RawPack load(const T* from) {
    RawPack raw;
#pragma unroll
    for (int i = 0; i < kParts; ++i) raw.parts[i] = reinterpret_cast<const uint4*>(from)[i];
    return raw;
  }
  __device__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) reinterpret_cast<uint4*>(to)[i] = parts[i];
  }
};

/// The same to compute with.
template <class T>
struct Pack {
  float x[kPack];

  static __device__ Pack of(const RawPack<T>& raw) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < RawPack<T>::kParts; ++i) {
      const uint4& part = raw.parts[i];
      const std::uint32_t words[] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, float>) {
          pack.x[4 * i + j] = __uint_as_float(words[j]);
        } else {
          pack.x[2 * j] = __uint_as_float(words[j] << 16);
          pack.x[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        }
      }
    }
    return pack;
  }
  __device__ RawPack<T> raw() const {
    RawPack<T> raw;
#pragma unroll
    for (int i = 0; i < RawPack<T>::kParts; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, float>) {
          words[j] = __float_as_uint(x[4 * i + j]);
        } else {
          asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[j]) : "f"(x[2 * j + 1]), "f"(x[2 * j]));
        }
      }
      raw.parts[i] = {words[0], words[1], words[2], words[3]};
    }
    return raw;
  }
  static __device__ Pack load(const T* from) { return of(RawPack<T>::load(from)); }
  __device__ void store(T* to) const { raw().store(to); }
  __device__ float& operator[](int i) { return x[i]; }
  __device__ float operator[](int i) const { return x[i]; }
};

/// Packs of each thread in shared memory, which it alone writes and reads: what it copies there
/// needs no barrier. Neighbouring threads' parts are neighbours, so that no banks collide.
template <class T, unsigned threads>
struct OwnPacks {
  static constexpr std::size_t kBytes = threads * sizeof(RawPack<T>);  ///< of one pack a thread
  uint4* shared;

  /// Starts a copy from global memory; it is one of the group that commit_copies() closes.
  __device__ void copy(int pack, const T* from) const {
#pragma unroll
    for (int i = 0; i < RawPack<T>::kParts; ++i) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(part(pack, i)))),
                   "l"(__cvta_generic_to_global(reinterpret_cast<const uint4*>(from) + i))
                   : "memory");
    }
  }
  __device__ void set_zero(int pack) const {
#pragma unroll
    for (int i = 0; i < RawPack<T>::kParts; ++i) *part(pack, i) = {};
  }
  __device__ Pack<T> operator[](int pack) const {
    RawPack<T> raw;
#pragma unroll
    for (int i = 0; i < RawPack<T>::kParts; ++i) raw.parts[i] = *part(pack, i);
    return Pack<T>::of(raw);
  }

 private:
  __device__ uint4* part(int pack, int i) const {
    return shared + (pack * RawPack<T>::kParts + i) * threads + threadIdx.x;
  }
};

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Returns when all but the last `pending` groups of this thread are there.
template <int pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

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
void launch_with_shared(const char* what, cudaStream_t stream, void (*kernel)(Parameters...),
                        std::size_t shared_bytes, std::size_t blocks, std::size_t threads,
                        std::type_identity_t<Parameters>... arguments) {
  if (blocks == 0) return;
  const void* const address = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t kUnasked = 48 << 10;  // what every kernel may have
  if (shared_bytes > kUnasked) {
    require(cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            what);
  }
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  require(cudaLaunchKernel(address, dim3(static_cast<unsigned>(blocks)),
                           dim3(static_cast<unsigned>(threads)), addresses, shared_bytes, stream),
          what);
}
template <class... Parameters>
void launch(const char* what, cudaStream_t stream, void (*kernel)(Parameters...),
            std::size_t blocks, std::size_t threads,
            std::type_identity_t<Parameters>... arguments) {
  launch_with_shared(what, stream, kernel, 0, blocks, threads, arguments...);
}

constexpr std::size_t divided_up(std::size_t value, std::size_t by) {
  return (value + by - 1) / by;
}

}  // namespace llama

/// For the kinds of element that the trainer is made for.
#define LLAMA_FOR_ELEMENTS(instantiate) instantiate(float) instantiate(tessera::bf16)
