#pragma once

#include <cstdint>

#include "tessera/exact/classify.hpp"

namespace tessera {

/// bfloat16: the upper half of an fp32, moved and compared as bits. Arithmetic is on fp32, by
/// `to_float` and `to_bf16`; the layout is that of `__nv_bfloat16` and `c10::BFloat16`.
struct bf16 {
  std::uint16_t bits;

  /// Equal bits, not equal values: -0 differs from +0, and a NaN equals itself.
  friend TESSERA_HD constexpr bool operator==(bf16 a, bf16 b) noexcept { return a.bits == b.bits; }
};

static_assert(sizeof(bf16) == 2);

/// Exact. A signalling NaN stays one.
TESSERA_HD constexpr float to_float(bf16 value) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even, denormals included; what is beyond the largest bf16 by half a
/// unit or more becomes infinite. Integer arithmetic, so neither flags nor the control register
/// matter. Every NaN becomes 0x7fc0, as in c10's `round_to_nearest_even` (CUDA's conversion gives
/// 0x7fff): a payload would differ between processors.
TESSERA_HD constexpr bf16 to_bf16(float value) noexcept {
  const std::uint32_t bits = detail::bits_of(value);
  if (detail::is_nan_bits(bits)) return {static_cast<std::uint16_t>(detail::kQuietNan32 >> 16)};
  // The carry out of the mantissa is the next exponent's: the largest values become infinity.
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace tessera
