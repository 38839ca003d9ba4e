// Layer norm over the last dimension.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>

#include "gradient.hpp"
#include "simd.hpp"

namespace gpt {

inline constexpr float kNormEpsilon = 1e-5f;

/// What backward needs of each row: its mean and the inverse of its deviation.
struct NormStatistics {
  float* mean;
  float* inverse;
};

inline void layer_norm_forward(std::size_t rows, std::size_t width, const float* x, const float* w,
                               const float* b, NormStatistics saved, float* y) {
  const float count = static_cast<float>(width);
  for (std::size_t row = 0; row < rows; ++row, x += width, y += width) {
    Vec sum{};
    for_lanes(width, [&](std::size_t i, auto lane) { sum += lane.load(x + i); });
    const float mean = sum_of(sum) / count;

    Vec square{};
    for_lanes(width, [&](std::size_t i, auto lane) {
      const Vec off = lane.load(x + i, mean) - mean;
      square += off * off;
    });
    const float inverse = 1.0f / std::sqrt(sum_of(square) / count + kNormEpsilon);

    for (std::size_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * inverse * w[i] + b[i];
    saved.mean[row] = mean;
    saved.inverse[row] = inverse;
  }
}

/// Adds to dx: its one use is beside a residual connection, whose gradient dx already holds.
inline void layer_norm_backward(std::size_t rows, std::size_t width, const float* dy,
                                const float* x, const float* w, NormStatistics saved,
                                Gradient<float> dw, Gradient<float> db, float* dx) {
  if (!dw.accumulate) std::memset(dw.data, 0, width * sizeof(float));
  if (!db.accumulate) std::memset(db.data, 0, width * sizeof(float));
  const float count = static_cast<float>(width);
  for (std::size_t row = 0; row < rows; ++row, dy += width, x += width, dx += width) {
    const float mean = saved.mean[row];
    const float inverse = saved.inverse[row];

    // One pass over the row: its parameters' gradients and the two sums that dx needs.
    Vec sum{};
    Vec product{};
    for_lanes(width, [&](std::size_t i, auto lane) {
      const Vec normal = (lane.load(x + i, mean) - mean) * inverse;
      const Vec upstream = lane.load(dy + i);
      const Vec g = upstream * lane.load(w + i);
      sum += g;
      product += g * normal;
      lane.store(dw.data + i, lane.load(dw.data + i) + upstream * normal);
      lane.store(db.data + i, lane.load(db.data + i) + upstream);
    });
    const float mean_gradient = sum_of(sum) / count;
    const float mean_product = sum_of(product) / count;

    for (std::size_t i = 0; i < width; ++i) {
      const float normal = (x[i] - mean) * inverse;
      dx[i] += (dy[i] * w[i] - mean_gradient - normal * mean_product) * inverse;
    }
  }
}

}  // namespace gpt
