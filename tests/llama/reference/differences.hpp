// Random inputs, and slopes by differences, for the tests of the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/exact/random.hpp"

namespace llama_reference {

using Doubles = std::vector<double>;
using Tokens = std::vector<std::uint32_t>;

inline Doubles random_values(std::size_t n, std::uint64_t stream, double deviation = 1.0) {
  Doubles values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = deviation * static_cast<double>(tessera::random_normal(7, stream, i));
  }
  return values;
}

inline Tokens random_tokens(std::size_t n, std::uint64_t stream, std::size_t vocab) {
  Tokens tokens(n);
  for (std::size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<std::uint32_t>(tessera::random_bits(7, stream, i) % vocab);
  }
  return tokens;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// df/dx, of fourth order in the step: the differences' own error stays below the tolerance.
inline double slope(const std::function<double()>& f, double& x) {
  constexpr double kStep = 2e-4;
  const double at = x;
  const auto shifted = [&](double by) {
    x = at + by * kStep;
    return f();
  };
  const double near = shifted(1.0) - shifted(-1.0);
  const double far = shifted(2.0) - shifted(-2.0);
  x = at;
  return (8.0 * near - far) / (12.0 * kStep);
}

/// The largest difference between `gradient` and the slopes of f at x, relative to the largest
/// slope. NaN where the gradient has one.
inline double gradient_error(const std::function<double()>& f, Doubles& x,
                             const Doubles& gradient) {
  double largest = 0.0;
  double difference = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = slope(f, x[i]);
    const double off = std::abs(gradient[i] - expected);
    if (std::isnan(off)) return off;
    difference = std::max(difference, off);
    largest = std::max(largest, std::abs(expected));
  }
  return difference / largest;
}

}  // namespace llama_reference
