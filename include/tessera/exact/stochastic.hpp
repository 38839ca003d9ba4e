#pragma once

#include <cstdint>

#include "tessera/exact/bf16.hpp"

namespace tessera {

/// A bijection of 64 bits in which every bit of the input reaches all of the output: two rounds of
/// multiplication and folding, cheap on devices, whose multiplications are of 32 bits.
TESSERA_HD constexpr std::uint64_t mix_bits(std::uint64_t z) noexcept {
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
  return z ^ (z >> 32);
}

/// Where an array's roundings get their random bits: a function of the key, the element's index and
/// the field alone, so that any rank and any backend makes the same ones.
struct RoundingKey {
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;  // odd: every index another value
  static constexpr std::uint64_t kFields = 0xd1b54a32d192ed03u;

  std::uint64_t stream = 0;
  std::uint64_t first = 0;  ///< index of the array's element 0

  /// The key of the same elements in an array that begins `elements` later; wraps around.
  TESSERA_HD constexpr RoundingKey from(std::uint64_t elements) const noexcept {
    return {stream, first + elements};
  }
  /// 64 bits for element i of the array, of which four fields have 16 each.
  template <int field>
  TESSERA_HD constexpr std::uint64_t word(std::uint64_t i) const noexcept {
    return mix_bits(stream + kFields * (field / 4) + (first + i) * kStep);
  }
  template <int field>
  static TESSERA_HD constexpr std::uint32_t bits_in(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> (16 * (field % 4))) & 0xffffu;
  }
  template <int field>
  TESSERA_HD constexpr std::uint32_t bits(std::uint64_t i) const noexcept {
    return bits_in<field>(word<field>(i));
  }
};

/// The key of a tensor's `update`-th change.
TESSERA_HD constexpr RoundingKey rounding_key(std::uint64_t seed, std::uint64_t tensor,
                                              std::uint64_t update) noexcept {
  return {mix_bits(mix_bits(mix_bits(seed + RoundingKey::kStep) ^ tensor) ^ update), 0};
}

/// Rounds to one of the two neighbours, to each as often as `value` is close to it, where
/// `random` is uniform in [0, 2^16). What a bf16 holds, infinities among it, stays; every NaN
/// becomes 0x7fc0. What is beyond the largest bf16 may become infinite.
TESSERA_HD constexpr bf16 to_bf16_stochastic(float value, std::uint32_t random) noexcept {
  const std::uint32_t bits = detail::bits_of(value);
  if (detail::is_nan_bits(bits)) return {static_cast<std::uint16_t>(detail::kQuietNan32 >> 16)};
  return {static_cast<std::uint16_t>((bits + random) >> 16)};
}

}  // namespace tessera
