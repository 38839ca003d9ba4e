#include <algorithm>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

// Box and Muller's normal numbers from the bits of a 64-bit mix (Steele et al., "SplitMix").
__device__ std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class T>
__global__ void fill_normal_kernel(std::size_t count, float deviation, std::uint64_t seed, T* out) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t bits = mixed(seed + (i + 1) * 0x9e3779b97f4a7c15u);
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
    out[i] = narrowed<T>(deviation * sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v));
  }
}

}  // namespace

template <class T>
void fill_normal(cudaStream_t stream, std::size_t count, float deviation, std::uint64_t seed,
                 T* out) {
  launch("fill_normal", stream, fill_normal_kernel<T>,
         std::min<std::size_t>(4096, divided_up(count, 256)), 256, count, deviation, seed, out);
}

#define INSTANTIATE(T) \
  template void fill_normal(cudaStream_t, std::size_t, float, std::uint64_t, T*);
LLAMA_FOR_ELEMENTS(INSTANTIATE)

}  // namespace llama
