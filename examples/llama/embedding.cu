#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

std::size_t row_threads(std::size_t dim) {
  return std::min<std::size_t>(256, divided_up(dim / kPack, kWarp) * kWarp);
}

// A thread copies of several rows, all of which are under way before the first is waited for.
constexpr int kForwardRows = 4;

template <class T>
__global__ void __launch_bounds__(256, 8)
    forward_kernel(std::size_t rows, std::size_t dim, const std::int32_t* tokens, const T* table,
                   T* out) {
  constexpr std::size_t kStep = sizeof(uint4) / sizeof(T);
  const std::size_t first = std::size_t{blockIdx.x} * kForwardRows;
  for (std::size_t at = threadIdx.x * kStep; at < dim; at += blockDim.x * kStep) {
    uint4 values[kForwardRows];
#pragma unroll
    for (int i = 0; i < kForwardRows; ++i) {
      const std::size_t row = first + i < rows ? first + i : first;
      const T* const from = table + static_cast<std::size_t>(tokens[row]) * dim + at;
      values[i] = *reinterpret_cast<const uint4*>(from);
    }
#pragma unroll
    for (int i = 0; i < kForwardRows; ++i) {
      if (first + i < rows) *reinterpret_cast<uint4*>(out + (first + i) * dim + at) = values[i];
    }
  }
}

__global__ void iota_kernel(std::size_t count, std::int32_t* out) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = static_cast<std::int32_t>(i);
}

// A block where a run of one token begins; the others have nothing to do.
template <class T>
__global__ void backward_kernel(std::size_t rows, std::size_t dim, const std::int32_t* tokens,
                                const std::int32_t* order, const T* gradient, T* table_gradient,
                                bool accumulate) {
  const std::size_t begin = blockIdx.x;
  const std::int32_t token = tokens[begin];
  if (begin > 0 && tokens[begin - 1] == token) return;
  std::size_t end = begin + 1;
  while (end < rows && tokens[end] == token) ++end;
  T* const to = table_gradient + static_cast<std::size_t>(token) * dim;
  for (std::size_t at = threadIdx.x * kPack; at < dim; at += blockDim.x * kPack) {
    Pack<T> sum{};
    if (accumulate) sum = Pack<T>::load(to + at);
#pragma unroll 4
    for (std::size_t i = begin; i < end; ++i) {
      const Pack<T> row = Pack<T>::load(gradient + static_cast<std::size_t>(order[i]) * dim + at);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum[k] += row[k];
    }
    sum.store(to + at);
  }
}

}  // namespace

std::size_t TokenSort::workspace_bytes(std::size_t rows) {
  std::size_t bytes = 0;
  const std::int32_t* in = nullptr;
  std::int32_t* out = nullptr;
  require(cub::DeviceRadixSort::SortPairs(nullptr, bytes, in, out, in, out,
                                          static_cast<std::int32_t>(rows)),
          "asking for the sort's workspace");
  return bytes;
}

void TokenSort::sort(cudaStream_t stream, std::size_t rows, const std::int32_t* tokens, Sorted out,
                     std::int32_t* iota, void* workspace, std::size_t workspace_bytes) {
  launch("iota", stream, iota_kernel, divided_up(rows, 256), 256, rows, iota);
  require(cub::DeviceRadixSort::SortPairs(workspace, workspace_bytes, tokens, out.tokens, iota,
                                          out.rows, static_cast<std::int32_t>(rows), 0, 32, stream),
          "sorting the tokens");
}

template <class T>
void embedding_forward(cudaStream_t stream, std::size_t rows, std::size_t dim,
                       const std::int32_t* tokens, const T* table, T* out) {
  launch("embedding_forward", stream, forward_kernel<T>, divided_up(rows, kForwardRows),
         row_threads(dim), rows, dim, tokens, table, out);
}

template <class T>
void embedding_backward(cudaStream_t stream, std::size_t rows, std::size_t dim,
                        std::size_t vocabulary, TokenSort::Sorted sorted, const T* gradient,
                        T* table_gradient, bool accumulate) {
  if (!accumulate) {
    require(cudaMemsetAsync(table_gradient, 0, vocabulary * dim * sizeof(T), stream),
            "clearing the embedding's gradient");
  }
  launch("embedding_backward", stream, backward_kernel<T>, rows, row_threads(dim), rows, dim,
         sorted.tokens, sorted.rows, gradient, table_gradient, accumulate);
}

#define INSTANTIATE(T)                                                                         \
  template void embedding_forward(cudaStream_t, std::size_t, std::size_t, const std::int32_t*, \
                                  const T*, T*);                                               \
  template void embedding_backward(cudaStream_t, std::size_t, std::size_t, std::size_t,        \
                                   TokenSort::Sorted, const T*, T*, bool);
LLAMA_FOR_ELEMENTS(INSTANTIATE)

}  // namespace llama
