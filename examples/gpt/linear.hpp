// Matrix products through BLAS, and the linear layer made of them.
#pragma once

#ifndef GPT_OWN_SGEMM  // set by programs that bring their own cblas_sgemm and its declaration
#include <cblas.h>
#endif

#include <cstddef>
#include <cstring>

#include "gradient.hpp"
#include "matrix.hpp"
#include "shapes.hpp"

namespace gpt {

/// Ranks are threads of one process: BLAS threads of their own would only fight over the cores.
inline void use_one_blas_thread() {
#ifdef OPENBLAS_VERSION
  openblas_set_num_threads(1);
#endif
}

/// c[m, n] = alpha a[m, k] b[k, n] + beta c. With beta 0, c is not read.
inline void multiply(std::size_t m, std::size_t n, std::size_t k, float alpha, Matrix a, Matrix b,
                     float beta, float* c, std::size_t c_stride) {
  const auto op = [](Matrix x) { return x.transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, op(a), op(b), static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), alpha, a.data, static_cast<int>(a.stride), b.data,
              static_cast<int>(b.stride), beta, c, static_cast<int>(c_stride));
}

/// y[rows, out] = x[rows, in] w[out, in]^T + bias, and + residual where one is given. Rows are set
/// to what is added before the product adds to them, which costs no more than BLAS' own zeroing.
inline void linear_forward(LinearShape s, const float* x, const float* w, const float* bias,
                           const float* residual, float* y) {
  for (std::size_t row = 0; row < s.rows; ++row) {
    float* to = y + row * s.out;
    if (residual == nullptr) {
      std::memcpy(to, bias, s.out * sizeof(float));
      continue;
    }
    const float* from = residual + row * s.out;
    for (std::size_t i = 0; i < s.out; ++i) to[i] = from[i] + bias[i];
  }
  multiply(s.rows, s.out, s.in, 1.0f, {x, s.in}, {w, s.in, true}, 1.0f, y, s.out);
}

/// dw[out, in] = dy[rows, out]^T x[rows, in].
inline void linear_weight_gradient(LinearShape s, const float* dy, const float* x,
                                   Gradient<float> dw) {
  multiply(s.out, s.in, s.rows, 1.0f, {dy, s.out, true}, {x, s.in}, dw.accumulate ? 1.0f : 0.0f,
           dw.data, s.in);
}

/// db[out]: the sum of dy over its rows, from the first to the last.
inline void linear_bias_gradient(LinearShape s, const float* dy, Gradient<float> db) {
  if (!db.accumulate) std::memset(db.data, 0, s.out * sizeof(float));
  for (std::size_t row = 0; row < s.rows; ++row) {
    const float* from = dy + row * s.out;
    for (std::size_t i = 0; i < s.out; ++i) db.data[i] += from[i];
  }
}

/// dx[rows, in] = dy[rows, out] w[out, in].
inline void linear_input_gradient(LinearShape s, const float* dy, const float* w, float* dx) {
  multiply(s.rows, s.in, s.out, 1.0f, {dy, s.out}, {w, s.in}, 0.0f, dx, s.in);
}

}  // namespace gpt
