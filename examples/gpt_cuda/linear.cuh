// The linear layer: matrix products through cuBLAS, and the bias.
#pragma once

#include <cstddef>

#include "../gpt/gradient.hpp"
#include "../gpt/shapes.hpp"
#include "column_sums.cuh"
#include "queue.hpp"

namespace gpt::cuda {

/// y += bias, and + residual where one is given.
static __global__ void bias_kernel(std::size_t width, const float* bias, const float* residual,
                                   float* y) {
  const std::size_t row = blockIdx.x * width;
  for (std::size_t i = threadIdx.x; i < width; i += kThreads) {
    const float value = y[row + i] + bias[i];
    y[row + i] = residual == nullptr ? value : value + residual[row + i];
  }
}

/// y[rows, out] = x[rows, in] w[out, in]^T + bias, and + residual where one is given.
inline void linear_forward(const Queue& q, LinearShape s, const float* x, const float* w,
                           const float* bias, const float* residual, float* y) {
  q.multiply(s.rows, s.out, s.in, 1.0f, {x, s.in}, {w, s.in, true}, 0.0f, y, s.out);
  launch_row_blocks(q.stream(), s.rows, bias_kernel, s.out, bias, residual, y);
}

/// dw[out, in] = dy[rows, out]^T x[rows, in].
inline void linear_weight_gradient(const Queue& q, LinearShape s, const float* dy, const float* x,
                                   Gradient<float> dw) {
  q.multiply(s.out, s.in, s.rows, 1.0f, {dy, s.out, true}, {x, s.in}, dw.accumulate ? 1.0f : 0.0f,
             dw.data, s.in);
}

/// db[out]: the sum of dy over its rows.
inline void linear_bias_gradient(const Queue& q, LinearShape s, const float* dy,
                                 ColumnScratch scratch, Gradient<float> db) {
  column_sums(q.stream(), s.rows, s.out, MatrixTerm{dy, s.out}, scratch, db);
}

/// dx[rows, in] = dy[rows, out] w[out, in].
inline void linear_input_gradient(const Queue& q, LinearShape s, const float* dy, const float* w,
                                  float* dx) {
  q.multiply(s.rows, s.in, s.out, 1.0f, {dy, s.out}, {w, s.in}, 0.0f, dx, s.in);
}

}  // namespace gpt::cuda
