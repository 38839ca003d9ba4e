// The widest float vector of the instruction set, as far as the kernels need one.
//
// Element-wise loops vectorise by themselves, but sums and maxima do not (a compiler may not
// reorder them), and libm's expf is a call per element. Without both, they and not the matrix
// products would take the time of a small model's step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpt {

#if defined(__AVX512F__)
inline constexpr std::size_t kLanes = 16;
#elif defined(__AVX__)
inline constexpr std::size_t kLanes = 8;
#else
inline constexpr std::size_t kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * sizeof(float))));
using VecInt = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

inline Vec splat(float value) { return value - Vec{}; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

/// Lanes are folded in a fixed order, so that a sum has the same bits in every run.
inline float sum_of(Vec v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof v);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

inline float max_of(Vec v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof v);
  for (std::size_t i = 1; i < kLanes; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

/// All lanes of a vector.
struct Whole {
  Vec load(const float* from, float = 0.0f) const {
    Vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  void store(float* to, Vec v) const { std::memcpy(to, &v, sizeof v); }
};

/// The first `count` lanes: the end of a row. Lanes beyond it read as `fill` and are not written.
struct Part {
  std::size_t count;

  Vec load(const float* from, float fill = 0.0f) const {
    Vec v = splat(fill);
    std::memcpy(&v, from, count * sizeof(float));
    return v;
  }
  void store(float* to, Vec v) const { std::memcpy(to, &v, count * sizeof(float)); }
};

/// Calls f(index, lanes) for every vector of n elements; the last one may be a Part.
template <class F>
inline void for_lanes(std::size_t n, F&& f) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, Whole{});
  if (i < n) f(i, Part{n - i});
}

/// e^x with a relative error below 2e-7; clamped to the range of normal floats, NaN stays NaN.
inline Vec exp(Vec exponent) {
  const Vec lowest = splat(-87.33654f);
  const Vec highest = splat(88.3762f);
  Vec x = exponent > lowest ? exponent : lowest;  // a NaN, too: it has no integer part
  x = x > highest ? highest : x;

  // e^x = 2^n e^r with |r| <= ln(2)/2. The conversion truncates, hence the half away from zero.
  const Vec scaled = x * 1.44269504f;
  const Vec half = scaled < 0.0f ? splat(-0.5f) : splat(0.5f);
  const VecInt n = __builtin_convertvector(scaled + half, VecInt);
  const Vec whole = __builtin_convertvector(n, Vec);
  const Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;

  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;

  const VecInt power = (n + 127) << 23;
  Vec two_to_n;
  std::memcpy(&two_to_n, &power, sizeof power);
  return exponent == exponent ? p * two_to_n : exponent;
}

inline Vec tanh(Vec x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

}  // namespace gpt
