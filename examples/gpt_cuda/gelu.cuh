// GELU, in its tanh form: see gpt/gelu.hpp.
#pragma once

#include <cstddef>

#include "../gpt/gelu.hpp"
#include "place.cuh"
#include "queue.hpp"

namespace gpt::cuda {

static __global__ void gelu_forward_kernel(std::size_t n, const float* x, float* y) {
  const std::size_t i = this_element();
  if (i >= n) return;
  const float v = x[i];
  const float t = tanhf(kGeluScale * v * (1.0f + kGeluCubic * v * v));
  y[i] = 0.5f * v * (1.0f + t);
}

static __global__ void gelu_backward_kernel(std::size_t n, const float* x, float* gradient) {
  const std::size_t i = this_element();
  if (i >= n) return;
  const float v = x[i];
  const float square = v * v;
  const float t = tanhf(kGeluScale * v * (1.0f + kGeluCubic * square));
  const float inner = kGeluScale * (1.0f + 3.0f * kGeluCubic * square);
  gradient[i] *= 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * inner;
}

inline void gelu_forward(const Queue& q, std::size_t n, const float* x, float* y) {
  launch_each(q.stream(), n, gelu_forward_kernel, x, y);
}

/// gradient[i] *= gelu'(x[i])
inline void gelu_backward(const Queue& q, std::size_t n, const float* x, float* gradient) {
  launch_each(q.stream(), n, gelu_backward_kernel, x, gradient);
}

}  // namespace gpt::cuda
