#pragma once

#include <cstdint>

#include "tessera/exact/bf16.hpp"

namespace tessera {

/// An fp32 in two halves of 16 bits, of which the upper is a bf16 to compute with.
struct SplitFloat {
  bf16 high;
  std::uint16_t low;
};

/// The upper half is `value` rounded to nearest, ties away from zero: to even could not be undone.
/// Every NaN becomes 0x7fc0 and 0.
TESSERA_HD constexpr SplitFloat split_float(float value) noexcept {
  const std::uint32_t bits = detail::bits_of(value);
  if (detail::is_nan_bits(bits)) {
    return {{static_cast<std::uint16_t>(detail::kQuietNan32 >> 16)}, 0};
  }
  // The carry out of the mantissa is the next exponent's: the largest values become infinity here,
  // and come back all the same.
  return {{static_cast<std::uint16_t>((bits + 0x8000u) >> 16)}, static_cast<std::uint16_t>(bits)};
}

/// What was split, exactly: a lower half from 0x8000 on was rounded up.
TESSERA_HD constexpr float join_float(bf16 high, std::uint16_t low) noexcept {
  const std::uint32_t bits = (std::uint32_t{high.bits} << 16) + low - ((low & 0x8000u) << 1);
  return __builtin_bit_cast(float, bits);
}

}  // namespace tessera
