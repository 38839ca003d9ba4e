// What weights and gradients are stored as: float, or a 16-bit brain float such as tessera::bf16.
// The arithmetic is fp32 either way, as GEMMs with bf16 input accumulate in fp32 too.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpt {

/// The upper half of a float, under the name `bits`.
template <class P>
concept BrainFloat = sizeof(P) == 2 && requires(P p) {
  { p.bits } -> std::convertible_to<std::uint16_t>;
};

template <class P>
concept Element = std::same_as<P, float> || BrainFloat<P>;

inline float to_float(float value) { return value; }

template <BrainFloat P>
float to_float(P value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest even; a NaN stays one, whichever of its bits are lost.
template <BrainFloat P>
P to_brain_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  P result{};
  result.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
  return result;
}

template <BrainFloat P>
void widen(const P* from, std::size_t n, float* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

/// Rounds fp32 gradients into `to`. An earlier micro-step's gradient is added before the rounding.
template <BrainFloat P>
void narrow(const float* from, std::size_t n, bool accumulate, P* to) {
  if (accumulate) {
    for (std::size_t i = 0; i < n; ++i) to[i] = to_brain_float<P>(to_float(to[i]) + from[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = to_brain_float<P>(from[i]);
  }
}

/// The two conversions as UnitScratch calls them, on the caller's thread.
struct HostConversion {
  template <BrainFloat P>
  void widen(const P* from, std::size_t n, float* to) const {
    gpt::widen(from, n, to);
  }
  template <BrainFloat P>
  void narrow(const float* from, std::size_t n, bool accumulate, P* to) const {
    gpt::narrow(from, n, accumulate, to);
  }
};

}  // namespace gpt
