// fp64 derivatives and comparisons for the tests of the GPT's kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace numeric {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

inline Doubles widen(const Floats& from) { return {from.begin(), from.end()}; }

/// From -1 to 1, the same for the same seed everywhere.
inline Floats random_floats(std::size_t n, std::uint32_t seed) {
  Floats values(n);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return values;
}

/// What memory that must not be read holds.
inline Floats poison(std::size_t n) { return Floats(n, std::numeric_limits<float>::quiet_NaN()); }

/// Central differences of f at x.
inline Doubles derivative(const std::function<double(const Doubles&)>& f, Doubles x) {
  constexpr double kStep = 1e-5;
  Doubles result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double above = f(x);
    x[i] = at - kStep;
    result[i] = (above - f(x)) / (2.0 * kStep);
    x[i] = at;
  }
  return result;
}

inline double dot(const Doubles& a, const Floats& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * static_cast<double>(b[i]);
  return sum;
}

/// The largest difference, relative to the largest expected value. NaN where either has one.
inline double error(const float* got, const Doubles& expected) {
  double largest = 0.0;
  double difference = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (std::isnan(off)) return off;
    difference = std::max(difference, off);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest > 0.0 ? difference / largest : difference;
}

inline double error(const Floats& got, const Doubles& expected) {
  return got.size() == expected.size() ? error(got.data(), expected)
                                       : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace numeric
