#pragma once

#include <cstdint>

#include "tessera/exact/config.hpp"

// Tests on the bits: under -ffast-math a compiler may take `x != x` and `!(x >= 0)` to be false.
namespace tessera::detail {

inline constexpr std::uint32_t kQuietNan32 = 0x7fc00000u;
inline constexpr std::uint64_t kQuietNan64 = 0x7ff8000000000000u;

TESSERA_HD constexpr std::uint32_t bits_of(float value) noexcept {
  return __builtin_bit_cast(std::uint32_t, value);
}
TESSERA_HD constexpr std::uint64_t bits_of(double value) noexcept {
  return __builtin_bit_cast(std::uint64_t, value);
}

TESSERA_HD constexpr bool is_nan_bits(std::uint32_t bits) noexcept {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}
TESSERA_HD constexpr bool is_nan_bits(std::uint64_t bits) noexcept {
  return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

TESSERA_HD constexpr bool is_finite(float value) noexcept {
  return (bits_of(value) & 0x7fffffffu) < 0x7f800000u;
}

TESSERA_HD constexpr bool is_finite(double value) noexcept {
  return (bits_of(value) & 0x7fffffffffffffffu) < 0x7ff0000000000000u;
}

/// Finite and not below zero; -0 is not below zero.
TESSERA_HD constexpr bool is_non_negative(float value) noexcept {
  return is_finite(value) && (bits_of(value) <= 0x7fffffffu || bits_of(value) == 0x80000000u);
}

/// Zero, or what divides and is divided by without becoming infinite: neither denormal nor inf.
TESSERA_HD constexpr bool is_zero_or_normal(float value) noexcept {
  return (bits_of(value) & 0x7fffffffu) == 0 ||
         (bits_of(value) >= 0x00800000u && bits_of(value) < 0x7f800000u);
}

/// In [0, 1): what a decay rate may be.
TESSERA_HD constexpr bool is_rate(float value) noexcept {
  return is_non_negative(value) && (bits_of(value) & 0x7fffffffu) < bits_of(1.0f);
}

/// `value`, with one NaN for all: payload and sign depend on the processor and the operand order.
TESSERA_HD constexpr double with_one_nan(double value) noexcept {
  return is_nan_bits(bits_of(value)) ? __builtin_bit_cast(double, kQuietNan64) : value;
}

}  // namespace tessera::detail
