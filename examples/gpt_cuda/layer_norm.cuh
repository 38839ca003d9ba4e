// Layer norm over the last dimension: a warp a row.
#pragma once

#include <cstddef>

#include "../gpt/layer_norm.hpp"
#include "column_sums.cuh"
#include "queue.hpp"

namespace gpt::cuda {

static __global__ void layer_norm_forward_kernel(std::size_t rows, std::size_t width,
                                                 const float* x, const float* w, const float* b,
                                                 NormStatistics saved, float* y) {
  const std::size_t row = this_row();
  if (row >= rows) return;
  x += row * width;
  y += row * width;
  const float count = static_cast<float>(width);
  float sum = 0.0f;
  for (std::size_t i = this_lane(); i < width; i += kWarp) sum += x[i];
  const float mean = warp_sum(sum) / count;
  float square = 0.0f;
  for (std::size_t i = this_lane(); i < width; i += kWarp) {
    const float off = x[i] - mean;
    square += off * off;
  }
  const float inverse = 1.0f / sqrtf(warp_sum(square) / count + kNormEpsilon);
  for (std::size_t i = this_lane(); i < width; i += kWarp) {
    y[i] = (x[i] - mean) * inverse * w[i] + b[i];
  }
  if (this_lane() != 0) return;
  saved.mean[row] = mean;
  saved.inverse[row] = inverse;
}

inline void layer_norm_forward(const Queue& q, std::size_t rows, std::size_t width, const float* x,
                               const float* w, const float* b, NormStatistics saved, float* y) {
  launch_rows(q.stream(), rows, layer_norm_forward_kernel, width, x, w, b, saved, y);
}

/// Adds to dx, of which it reads nothing but the row that it writes.
static __global__ void layer_norm_input_kernel(std::size_t rows, std::size_t width, const float* dy,
                                               const float* x, const float* w, NormStatistics saved,
                                               float* dx) {
  const std::size_t row = this_row();
  if (row >= rows) return;
  dy += row * width;
  x += row * width;
  dx += row * width;
  const float mean = saved.mean[row];
  const float inverse = saved.inverse[row];
  float sum = 0.0f;
  float product = 0.0f;
  for (std::size_t i = this_lane(); i < width; i += kWarp) {
    const float g = dy[i] * w[i];
    sum += g;
    product += g * ((x[i] - mean) * inverse);
  }
  const float count = static_cast<float>(width);
  const float mean_gradient = warp_sum(sum) / count;
  const float mean_product = warp_sum(product) / count;
  for (std::size_t i = this_lane(); i < width; i += kWarp) {
    const float normal = (x[i] - mean) * inverse;
    dx[i] += (dy[i] * w[i] - mean_gradient - normal * mean_product) * inverse;
  }
}

/// What a row adds to the gradient of the layer norm's weights.
struct NormWeightTerm {
  const float* dy;
  const float* x;
  NormStatistics saved;
  std::size_t width;

  __device__ float operator()(std::size_t row, std::size_t column) const {
    const std::size_t at = row * width + column;
    return dy[at] * ((x[at] - saved.mean[row]) * saved.inverse[row]);
  }
};

/// Adds to dx: its one use is beside a residual connection, whose gradient dx already holds.
inline void layer_norm_backward(const Queue& q, std::size_t rows, std::size_t width,
                                const float* dy, const float* x, const float* w,
                                NormStatistics saved, ColumnScratch scratch, Gradient<float> dw,
                                Gradient<float> db, float* dx) {
  column_sums(q.stream(), rows, width, NormWeightTerm{dy, x, saved, width}, scratch, dw);
  column_sums(q.stream(), rows, width, MatrixTerm{dy, width}, scratch, db);
  launch_rows(q.stream(), rows, layer_norm_input_kernel, width, dy, x, w, saved, dx);
}

}  // namespace gpt::cuda
