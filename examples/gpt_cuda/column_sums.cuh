// Sums over the rows of a matrix, one per column: the gradients of biases and layer norms.
#pragma once

#include <cstddef>

#include "../gpt/gradient.hpp"
#include "device_arena.hpp"
#include "place.cuh"

namespace gpt::cuda {

/// Rows in one part. Parts are summed side by side, and then one after the other: an order that
/// depends on the number of rows alone.
inline constexpr std::size_t kPartRows = 128;
inline constexpr unsigned kPartLanes = kThreads / kWarp;  // rows that a block adds at a time

inline std::size_t column_parts(std::size_t rows) { return (rows + kPartRows - 1) / kPartRows; }

/// What the parts add up to, in between.
struct ColumnScratch {
  float* parts = nullptr;

  static ColumnScratch carve(DeviceArena& arena, std::size_t rows, std::size_t most_columns) {
    return {arena.take(column_parts(rows) * most_columns)};
  }
};

/// A block sums one part of 32 columns; threadIdx.x is the column, so that reads are contiguous.
template <class Term>
__global__ void column_parts_kernel(std::size_t rows, std::size_t columns, Term term,
                                    float* parts) {
  __shared__ float sums[kPartLanes][kWarp];
  const std::size_t column = std::size_t{blockIdx.x} * kWarp + threadIdx.x;
  const std::size_t first = std::size_t{blockIdx.y} * kPartRows;
  const std::size_t last = first + kPartRows < rows ? first + kPartRows : rows;
  float sum = 0.0f;
  if (column < columns) {
    for (std::size_t row = first + threadIdx.y; row < last; row += kPartLanes) {
      sum += term(row, column);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (unsigned i = 1; i < kPartLanes; ++i) sum += sums[i][threadIdx.x];
  parts[blockIdx.y * columns + column] = sum;
}

static __global__ void column_total_kernel(std::size_t columns, std::size_t count,
                                           const float* parts, bool accumulate, float* out) {
  const std::size_t column = this_element();
  if (column >= columns) return;
  float sum = 0.0f;
  for (std::size_t part = 0; part < count; ++part) sum += parts[part * columns + column];
  out[column] = accumulate ? out[column] + sum : sum;
}

/// The terms that are a matrix' own elements.
struct MatrixTerm {
  const float* data;
  std::size_t width;

  __device__ float operator()(std::size_t row, std::size_t column) const {
    return data[row * width + column];
  }
};

/// out[column] = the sum of term(row, column) over the rows. `Term` is a functor of the device.
template <class Term>
void column_sums(cudaStream_t stream, std::size_t rows, std::size_t columns, Term term,
                 ColumnScratch scratch, Gradient<float> out) {
  const std::size_t count = column_parts(rows);
  launch(stream, column_parts_kernel<Term>,
         dim3(blocks_for(columns, kWarp), static_cast<unsigned>(count)), dim3(kWarp, kPartLanes),
         rows, columns, term, scratch.parts);
  launch_each(stream, columns, column_total_kernel, count, scratch.parts, out.accumulate, out.data);
}

}  // namespace gpt::cuda
