#pragma once

#include "tessera/exact/config.hpp"

namespace tessera {

/// A double whose operations each round once to nearest even whatever the flags. For the scalar
/// work that surrounds the lanes: coefficients, trees of cells, random numbers. It is made of base
/// instructions only and so, unlike Lanes, the same type in every translation unit.
struct StrictDouble {
  double x;

  friend TESSERA_HD StrictDouble operator+(StrictDouble a, StrictDouble b) noexcept {
    double r;
    TESSERA_F64_BASE_OP(add, +, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD StrictDouble operator-(StrictDouble a, StrictDouble b) noexcept {
    double r;
    TESSERA_F64_BASE_OP(sub, -, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD StrictDouble operator*(StrictDouble a, StrictDouble b) noexcept {
    double r;
    TESSERA_F64_BASE_OP(mul, *, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD StrictDouble operator/(StrictDouble a, StrictDouble b) noexcept {
    double r;
    TESSERA_F64_BASE_OP(div, /, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD StrictDouble sqrt(StrictDouble a) noexcept {
    double r;
    TESSERA_F64_BASE_SQRT(r, a.x);
    return {r};
  }

  /// Rounds once more, to nearest even.
  TESSERA_HD float to_float() const noexcept { return static_cast<float>(x); }
};

}  // namespace tessera
