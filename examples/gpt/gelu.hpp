// GELU, in its tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
#pragma once

#include <cstddef>

#include "simd.hpp"

namespace gpt {

inline constexpr float kGeluScale = 0.797884561f;
inline constexpr float kGeluCubic = 0.044715f;

inline void gelu_forward(std::size_t n, const float* x, float* y) {
  for_lanes(n, [&](std::size_t i, auto lane) {
    const Vec v = lane.load(x + i);
    const Vec t = tanh(kGeluScale * v * (1.0f + kGeluCubic * v * v));
    lane.store(y + i, 0.5f * v * (1.0f + t));
  });
}

/// gradient[i] *= gelu'(x[i])
inline void gelu_backward(std::size_t n, const float* x, float* gradient) {
  for_lanes(n, [&](std::size_t i, auto lane) {
    const Vec v = lane.load(x + i);
    const Vec square = v * v;
    const Vec t = tanh(kGeluScale * v * (1.0f + kGeluCubic * square));
    const Vec inner = kGeluScale * (1.0f + 3.0f * kGeluCubic * square);
    const Vec slope = 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * inner;
    lane.store(gradient + i, lane.load(gradient + i) * slope);
  });
}

}  // namespace gpt
