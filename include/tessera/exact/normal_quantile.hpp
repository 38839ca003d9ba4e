#pragma once

#include <cstdint>

#include "tessera/exact/classify.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera::detail {

/// c0 + c1 x + c2 x^2 + ..., by Horner.
TESSERA_HD inline StrictDouble polynomial(StrictDouble, double c0) noexcept { return {c0}; }
template <class... Rest>
TESSERA_HD StrictDouble polynomial(StrictDouble x, double c0, Rest... rest) noexcept {
  return StrictDouble{c0} + x * polynomial(x, rest...);
}

/// The natural logarithm of a positive normal number, within a few units in the last place: x is
/// m 2^e with m in [1/sqrt 2, sqrt 2), and ln m = 2 artanh((m - 1) / (m + 1)).
TESSERA_HD inline StrictDouble strict_log(double x) noexcept {
  constexpr std::uint64_t kMantissa = 0x000fffffffffffffu;
  constexpr std::uint64_t kSqrt2 = 0x3ff6a09e667f3bcdu;
  const std::uint64_t bits = bits_of(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  std::uint64_t mantissa = (bits & kMantissa) | 0x3ff0000000000000u;
  if (mantissa >= kSqrt2) {
    mantissa -= std::uint64_t{1} << 52;  // halved
    ++exponent;
  }
  const StrictDouble m{__builtin_bit_cast(double, mantissa)};
  const StrictDouble one{1.0};
  const StrictDouble s = (m - one) / (m + one);
  const StrictDouble series =
      polynomial(s * s, 2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15,
                 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23);
  return StrictDouble{static_cast<double>(exponent)} * StrictDouble{0.6931471805599453} +
         s * series;
}

/// The standard normal quantile at (2k + 1) / 2^53, k < 2^52, with a relative error of about 1e-7:
/// PPND7 of Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
/// Statistics 37 (1988).
TESSERA_HD inline StrictDouble normal_quantile(std::uint64_t k) noexcept {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 52;  // 1/2 in units of 2^-53
  const std::uint64_t point = 2 * k + 1;
  const bool upper = point > kHalf;
  const std::uint64_t tail = upper ? 2 * kHalf - point : point;  // in (0, 1/2)
  // Exact: all integers here are below 2^53.
  const double offset = static_cast<double>(kHalf - tail) * 0x1p-53;
  StrictDouble magnitude;
  if (offset <= 0.425) {
    const StrictDouble q{offset};
    const StrictDouble r = StrictDouble{0.180625} - q * q;
    magnitude =
        q * polynomial(r, 3.3871327179e+00, 5.0434271938e+01, 1.5929113202e+02, 5.9109374720e+01) /
        polynomial(r, 1.0, 1.7895169469e+01, 7.8757757664e+01, 6.7187563600e+01);
  } else {
    const StrictDouble log = strict_log(static_cast<double>(tail) * 0x1p-53);
    const StrictDouble r = sqrt(StrictDouble{0.0} - log);
    if (r.x <= 5.0) {
      const StrictDouble t = r - StrictDouble{1.6};
      magnitude =
          polynomial(t, 1.4234372777e+00, 2.7568153900e+00, 1.3067284816e+00, 1.7023821103e-01) /
          polynomial(t, 1.0, 7.3700164250e-01, 1.2021132975e-01);
    } else {
      const StrictDouble t = r - StrictDouble{5.0};
      magnitude =
          polynomial(t, 6.6579051150e+00, 3.0812263860e+00, 4.2868294337e-01, 1.7337203997e-02) /
          polynomial(t, 1.0, 2.4197894225e-01, 1.2258202635e-02);
    }
  }
  return upper ? magnitude : StrictDouble{0.0} - magnitude;
}

}  // namespace tessera::detail
