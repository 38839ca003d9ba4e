// 16-bit weights and gradients on the device: the conversions of gpt/element.hpp, as kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../gpt/element.hpp"
#include "place.cuh"

namespace gpt::cuda {

__device__ inline float widened(float value) { return value; }

template <BrainFloat P>
__device__ float widened(P value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}

/// As gpt::to_brain_float: to nearest even, and a NaN stays one.
template <BrainFloat P>
__device__ P narrowed(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  P result{};
  result.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
  return result;
}

template <BrainFloat P>
__global__ void widen_kernel(std::size_t n, const P* from, float* to) {
  const std::size_t i = this_element();
  if (i < n) to[i] = widened(from[i]);
}

template <BrainFloat P>
__global__ void narrow_kernel(std::size_t n, const float* from, bool accumulate, P* to) {
  const std::size_t i = this_element();
  if (i >= n) return;
  to[i] = narrowed<P>(accumulate ? widened(to[i]) + from[i] : from[i]);
}

/// What gpt::UnitScratch converts with where the weights are in device memory.
struct DeviceConversion {
  cudaStream_t stream = nullptr;

  template <BrainFloat P>
  void widen(const P* from, std::size_t n, float* to) const {
    launch_each(stream, n, widen_kernel<P>, from, to);
  }
  template <BrainFloat P>
  void narrow(const float* from, std::size_t n, bool accumulate, P* to) const {
    launch_each(stream, n, narrow_kernel<P>, from, accumulate, to);
  }
};

}  // namespace gpt::cuda
