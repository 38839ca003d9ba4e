#pragma once

#include <cstddef>

namespace llama_reference {

/// Several partial sums, which a compiler can keep in a vector without reordering anything.
template <class Real>
Real dot_product(const Real* a, const Real* b, std::size_t n) {
  constexpr std::size_t kLanes = 16;
  Real lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  Real sum{};
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const Real lane : lanes) sum += lane;
  return sum;
}

}  // namespace llama_reference
