#include <algorithm>
#include <stdexcept>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

__global__ void table_kernel(std::size_t sequence, std::size_t half, float theta, float* cosines,
                             float* sines) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= sequence * half) return;
  // In double, as a position times a frequency in fp32 is off by a thousandth at 10,000.
  const double frequency =
      pow(static_cast<double>(theta), -static_cast<double>(i % half) / static_cast<double>(half));
  const double angle = static_cast<double>(i / half) * frequency;
  cosines[i] = static_cast<float>(cos(angle));
  sines[i] = static_cast<float>(sin(angle));
}

// A block a row: it rotates its heads by the same angles. A thread takes two packs, which belong
// together: one of the first half of a head, one of the second.
template <class T>
__global__ void rope_kernel(std::size_t sequence, std::size_t pairs, std::size_t head_dim,
                            std::size_t stride, const float* cosines, const float* sines,
                            float direction, T* qkv) {
  const std::size_t row = blockIdx.x;
  const std::size_t half = head_dim / 2;
  const std::size_t packs = half / kPack;
  const std::size_t angles = row % sequence * half;
  for (std::size_t p = threadIdx.x; p < pairs; p += blockDim.x) {
    const std::size_t offset = p % packs * kPack;
    T* const first = qkv + row * stride + p / packs * head_dim + offset;
    T* const second = first + half;
    Pack<T> a = Pack<T>::load(first);
    Pack<T> b = Pack<T>::load(second);
    const Pack<float> c = Pack<float>::load(cosines + angles + offset);
    const Pack<float> s = Pack<float>::load(sines + angles + offset);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float sine = s[i] * direction;
      const float x = a[i];
      a[i] = x * c[i] - b[i] * sine;
      b[i] = b[i] * c[i] + x * sine;
    }
    a.store(first);
    b.store(second);
  }
}

}  // namespace

void fill_rope_table(cudaStream_t stream, std::size_t sequence, std::size_t head_dim, float theta,
                     float* cosines, float* sines) {
  const std::size_t half = head_dim / 2;
  launch("fill_rope_table", stream, table_kernel, divided_up(sequence * half, 256), 256, sequence,
         half, theta, cosines, sines);
}

template <class T>
void rope(cudaStream_t stream, std::size_t rows, std::size_t sequence, std::size_t rotated_heads,
          std::size_t head_dim, std::size_t stride, const float* cosines, const float* sines,
          bool backward, T* qkv) {
  if (head_dim % (2 * kPack) != 0) {
    throw std::invalid_argument("rope: head dimensions are multiples of 16");
  }
  const std::size_t pairs = rotated_heads * (head_dim / 2 / kPack);
  const std::size_t threads = std::min<std::size_t>(512, divided_up(pairs, kWarp) * kWarp);
  launch("rope", stream, rope_kernel<T>, rows, threads, sequence, pairs, head_dim, stride, cosines,
         sines, backward ? -1.0f : 1.0f, qkv);
}

#define INSTANTIATE(T)                                                                 \
  template void rope(cudaStream_t, std::size_t, std::size_t, std::size_t, std::size_t, \
                     std::size_t, const float*, const float*, bool, T*);
LLAMA_FOR_ELEMENTS(INSTANTIATE)

}  // namespace llama
