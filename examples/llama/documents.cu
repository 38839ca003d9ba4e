#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

constexpr unsigned kThreads = 256;

__global__ void bounds_kernel(std::size_t count, const std::int32_t* starts, RowOffsets qkv,
                              RowOffsets out, RowOffsets statistics, std::int32_t* lengths) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i > count) return;
  const std::int64_t start = starts[i];
  for (const RowOffsets& each : {qkv, out, statistics}) each.offsets[i] = start * each.width;
  if (i < count) lengths[i] = starts[i + 1] - starts[i];
}

// The last document that starts at the row or before it: empty ones start beyond all rows.
__global__ void rows_kernel(std::size_t rows, std::size_t count, const std::int32_t* starts,
                            std::int32_t* first) {
  const std::size_t row = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  std::size_t low = 0, high = count;
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    (static_cast<std::size_t>(starts[middle]) <= row ? low : high) = middle;
  }
  first[row] = starts[low];
}

}  // namespace

void document_bounds(cudaStream_t stream, std::size_t count, const std::int32_t* starts,
                     RowOffsets qkv, RowOffsets out, RowOffsets statistics, std::int32_t* lengths) {
  launch("the documents' bounds", stream, bounds_kernel, divided_up(count + 1, kThreads), kThreads,
         count, starts, qkv, out, statistics, lengths);
}

void document_of_rows(cudaStream_t stream, std::size_t rows, std::size_t count,
                      const std::int32_t* starts, std::int32_t* first) {
  launch("the documents of rows", stream, rows_kernel, divided_up(rows, kThreads), kThreads, rows,
         count, starts, first);
}

}  // namespace llama
