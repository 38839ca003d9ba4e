// y = x / sqrt(mean(x^2) + epsilon) * w over each row of `width`.
#pragma once

#include <cmath>
#include <cstddef>

#include "dot_product.hpp"

namespace llama_reference {

inline constexpr double kNormEpsilon = 1e-5;

/// inverse [rows]: what the row is multiplied by, which backward needs.
template <class Real>
void rms_norm_forward(std::size_t rows, std::size_t width, const Real* x, const Real* w,
                      Real* inverse, Real* y) {
  for (std::size_t row = 0; row < rows; ++row, x += width, y += width) {
    const Real mean = dot_product(x, x, width) / static_cast<Real>(width);
    inverse[row] = Real{1} / std::sqrt(mean + static_cast<Real>(kNormEpsilon));
    for (std::size_t i = 0; i < width; ++i) y[i] = x[i] * inverse[row] * w[i];
  }
}

/// dx = the norm's gradient, plus the `residual` one that passes by it unless that is null; dx may
/// be `residual`. dw is added to.
template <class Real>
void rms_norm_backward(std::size_t rows, std::size_t width, const Real* x, const Real* w,
                       const Real* inverse, const Real* dy, const Real* residual, Real* dx,
                       Real* dw) {
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t start = row * width;
    const Real scale = inverse[row];
    Real along{};  // how far the gradient points along x, which the norm takes out
    for (std::size_t i = 0; i < width; ++i) along += dy[start + i] * w[i] * x[start + i];
    const Real correction = along * scale * scale / static_cast<Real>(width);
    for (std::size_t i = 0; i < width; ++i) {
      const Real at = x[start + i];
      dw[i] += dy[start + i] * at * scale;
      const Real passing = residual == nullptr ? Real{} : residual[start + i];
      dx[start + i] = passing + scale * (dy[start + i] * w[i] - at * correction);
    }
  }
}

}  // namespace llama_reference
