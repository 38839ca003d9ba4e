#pragma once
// Lanes<1>, for every host and for CUDA devices. Include <tessera/exact/lanes.hpp>.

#include <cstdint>

#include "tessera/exact/bf16.hpp"
#include "tessera/exact/config.hpp"

namespace tessera {
inline namespace TESSERA_ISA {

/// W fp32 values. `+ - * /` and `sqrt` each round once to nearest even, whatever the flags, as long
/// as the control register says so (`StrictRounding` on the host); the other operations are exact
/// and work on bits. W = 1 exists everywhere, CUDA devices included; 4, 8 and 16 follow the
/// translation unit's instruction set (SSE2, AVX, AVX-512F). An element's result does not depend
/// on W, but the payload of a NaN may differ between processors.
template <int W>
struct Lanes;

/// What a comparison gives: a truth value per lane.
template <int W>
struct Mask;

template <>
struct Mask<1> {
  bool m;
  friend TESSERA_HD Mask operator&(Mask a, Mask b) noexcept { return {a.m && b.m}; }
  friend TESSERA_HD Mask operator|(Mask a, Mask b) noexcept { return {a.m || b.m}; }
  friend TESSERA_HD Mask operator~(Mask a) noexcept { return {!a.m}; }
};

template <>
struct Lanes<1> {
  static constexpr int width = 1;
  float x;

  static TESSERA_HD Lanes splat(float value) noexcept { return {value}; }
  static TESSERA_HD Lanes load(const float* from) noexcept { return {*from}; }
  static TESSERA_HD Lanes load(const bf16* from) noexcept { return {to_float(*from)}; }
  TESSERA_HD void store(float* to) const noexcept { *to = x; }
  TESSERA_HD void store(bf16* to) const noexcept { *to = to_bf16(x); }

  friend TESSERA_HD Lanes operator+(Lanes a, Lanes b) noexcept {
    float r;
    TESSERA_F32_OP(add, +, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD Lanes operator-(Lanes a, Lanes b) noexcept {
    float r;
    TESSERA_F32_OP(sub, -, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD Lanes operator*(Lanes a, Lanes b) noexcept {
    float r;
    TESSERA_F32_OP(mul, *, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD Lanes operator/(Lanes a, Lanes b) noexcept {
    float r;
    TESSERA_F32_OP(div, /, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD Lanes sqrt(Lanes a) noexcept {
    float r;
    TESSERA_F32_SQRT(r, a.x);
    return {r};
  }
  friend TESSERA_HD Lanes operator-(Lanes a) noexcept { return of(a.bits() ^ kSign); }
  friend TESSERA_HD Lanes abs(Lanes a) noexcept { return of(a.bits() & ~kSign); }

  /// a < b; false where either is NaN; -0 is not less than +0.
  friend TESSERA_HD Mask<1> less(Lanes a, Lanes b) noexcept {
    // On keys that are ordered as the values are: a comparison of floats flushes denormals under
    // CUDA's -use_fast_math, and may ignore NaN under the host's.
    return {a.key() < b.key() && !(is_nan(a) | is_nan(b)).m};
  }
  friend TESSERA_HD Mask<1> is_nan(Lanes a) noexcept { return {detail::is_nan_bits(a.bits())}; }

  /// -1, +0 or +1 by the sign of `a`, +0 for both zeros; NaN stays NaN.
  friend TESSERA_HD Lanes sign(Lanes a) noexcept {
    const std::uint32_t magnitude = a.bits() & ~kSign;
    if (magnitude == 0) return {0.0f};
    return is_nan(a).m ? a : of((a.bits() & kSign) | kOne);
  }
  /// `a` where the mask is set, `b` elsewhere, bit by bit.
  friend TESSERA_HD Lanes select(Mask<1> mask, Lanes a, Lanes b) noexcept { return mask.m ? a : b; }

 private:
  static constexpr std::uint32_t kSign = 0x80000000u;
  static constexpr std::uint32_t kOne = 0x3f800000u;

  TESSERA_HD std::uint32_t bits() const noexcept { return detail::bits_of(x); }
  static TESSERA_HD Lanes of(std::uint32_t bits) noexcept {
    return {__builtin_bit_cast(float, bits)};
  }
  TESSERA_HD std::int32_t key() const noexcept {
    const auto magnitude = static_cast<std::int32_t>(bits() & ~kSign);
    return bits() & kSign ? -magnitude : magnitude;
  }
};

/// The larger; the first of two equal ones, zeros of either sign included; NaN if either is.
TESSERA_EXEC_CHECK_DISABLE
template <int W>
TESSERA_HD Lanes<W> max(Lanes<W> a, Lanes<W> b) noexcept {
  return select(less(a, b) | (is_nan(b) & ~is_nan(a)), b, a);
}
/// The smaller; the first of two equal ones, zeros of either sign included; NaN if either is.
TESSERA_EXEC_CHECK_DISABLE
template <int W>
TESSERA_HD Lanes<W> min(Lanes<W> a, Lanes<W> b) noexcept {
  return select(less(b, a) | (is_nan(b) & ~is_nan(a)), b, a);
}

}  // namespace TESSERA_ISA
}  // namespace tessera
