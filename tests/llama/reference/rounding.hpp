// What happens to a value where a trainer would store it in memory. Sums, statistics and
// probabilities, which stay in registers or in fp32, are not stored in this sense.
#pragma once

#include <vector>

#include "tessera/exact/bf16.hpp"

namespace llama_reference {

struct KeepPrecision {
  template <class Real>
  static Real stored(Real value) {
    return value;
  }
};

struct RoundToBf16 {
  template <class Real>
  static Real stored(Real value) {
    return static_cast<Real>(tessera::to_float(tessera::to_bf16(static_cast<float>(value))));
  }
};

template <class Round, class Real>
void store(std::vector<Real>& values) {
  for (Real& value : values) value = Round::stored(value);
}

}  // namespace llama_reference
