#pragma once
// Lanes<4>, <8> and <16>, on x86 only. Include <tessera/exact/lanes.hpp>.
// GNU vectors carry the bits (no intrinsics: <immintrin.h> alone costs more to compile than this
// library's core); asm instructions do the arithmetic.

#include <cstdint>

#include "tessera/exact/config.hpp"
#include "tessera/exact/scalar_lanes.hpp"

#if TESSERA_NATIVE_LANES > 1

namespace tessera {
namespace detail {
inline namespace TESSERA_ISA {

template <int W>
struct VectorsOf;

// Explicit, since not every front end takes a vector_size that depends on a template parameter.
#define TESSERA_VECTORS_OF(W)                                           \
  template <>                                                           \
  struct VectorsOf<W> {                                                 \
    typedef float Floats __attribute__((vector_size(4 * (W))));         \
    typedef std::int32_t Ints __attribute__((vector_size(4 * (W))));    \
    typedef std::uint32_t Words __attribute__((vector_size(4 * (W))));  \
    typedef std::uint16_t Halves __attribute__((vector_size(2 * (W)))); \
    using Stored = TESSERA_STORED(Floats);                              \
  }
TESSERA_VECTORS_OF(4);
#if TESSERA_NATIVE_LANES >= 8
TESSERA_VECTORS_OF(8);
#endif
#if TESSERA_NATIVE_LANES >= 16
TESSERA_VECTORS_OF(16);
#endif
#undef TESSERA_VECTORS_OF

/// The same bits as another type.
template <class To, class From>
inline To as(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

}  // namespace TESSERA_ISA
}  // namespace detail

inline namespace TESSERA_ISA {

template <int W>
struct Mask {
  using Ints = typename detail::VectorsOf<W>::Ints;
  typename detail::VectorsOf<W>::Stored m;  // all bits of a lane, or none

  static Mask of(Ints v) noexcept { return {detail::as<typename detail::VectorsOf<W>::Stored>(v)}; }
  Ints ints() const noexcept { return detail::as<Ints>(m); }
  friend Mask operator&(Mask a, Mask b) noexcept { return of(a.ints() & b.ints()); }
  friend Mask operator|(Mask a, Mask b) noexcept { return of(a.ints() | b.ints()); }
  friend Mask operator~(Mask a) noexcept { return of(~a.ints()); }
};

template <int W>
struct Lanes {
  static constexpr int width = W;
  using Floats = typename detail::VectorsOf<W>::Floats;
  using Ints = typename detail::VectorsOf<W>::Ints;
  using Words = typename detail::VectorsOf<W>::Words;
  using Halves = typename detail::VectorsOf<W>::Halves;
  using Stored = typename detail::VectorsOf<W>::Stored;
  Stored x;

  static Lanes splat(float value) noexcept {
    // By bits: the usual `vector + scalar` would be an addition of floats.
    return of(Ints{} | static_cast<std::int32_t>(detail::bits_of(value)));
  }
  static Lanes load(const float* from) noexcept {
    Floats r;
    __builtin_memcpy(&r, from, sizeof r);
    return of(r);
  }
  static Lanes load(const bf16* from) noexcept {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    return of(reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16));
  }
  void store(float* to) const noexcept {
    const Floats r = floats();
    __builtin_memcpy(to, &r, sizeof r);
  }
  void store(bf16* to) const noexcept {
    const Words u = reinterpret_cast<Words>(floats());
    const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const Words nan = reinterpret_cast<Words>(is_nan(*this).ints());
    const Words merged = (nan & (detail::kQuietNan32 >> 16)) | (~nan & rounded);
    const Halves halves = __builtin_convertvector(merged, Halves);
    __builtin_memcpy(to, &halves, sizeof halves);
  }

  friend Lanes operator+(Lanes a, Lanes b) noexcept {
    Floats r;
    TESSERA_PS_OP(add, r, a.floats(), b.floats());
    return of(r);
  }
  friend Lanes operator-(Lanes a, Lanes b) noexcept {
    Floats r;
    TESSERA_PS_OP(sub, r, a.floats(), b.floats());
    return of(r);
  }
  friend Lanes operator*(Lanes a, Lanes b) noexcept {
    Floats r;
    TESSERA_PS_OP(mul, r, a.floats(), b.floats());
    return of(r);
  }
  friend Lanes operator/(Lanes a, Lanes b) noexcept {
    Floats r;
    TESSERA_PS_OP(div, r, a.floats(), b.floats());
    return of(r);
  }
  friend Lanes sqrt(Lanes a) noexcept {
    Floats r;
    TESSERA_PS_SQRT(r, a.floats());
    return of(r);
  }
  friend Lanes operator-(Lanes a) noexcept { return of(a.ints() ^ kSign); }
  friend Lanes abs(Lanes a) noexcept { return of(a.ints() & ~kSign); }

  friend Mask<W> less(Lanes a, Lanes b) noexcept {
    return Mask<W>::of(a.key() < b.key()) & ~(is_nan(a) | is_nan(b));
  }
  friend Mask<W> is_nan(Lanes a) noexcept { return Mask<W>::of((a.ints() & ~kSign) > kInfinity); }
  friend Lanes sign(Lanes a) noexcept {
    const Ints bits = a.ints();
    const Ints nonzero = (bits & ~kSign) != 0;
    return select(is_nan(a), a, of(nonzero & ((bits & kSign) | kOne)));
  }
  friend Lanes select(Mask<W> mask, Lanes a, Lanes b) noexcept {
    return of((mask.ints() & a.ints()) | (~mask.ints() & b.ints()));
  }

 private:
  static constexpr std::int32_t kSign = INT32_MIN;
  static constexpr std::int32_t kOne = 0x3f800000;
  static constexpr std::int32_t kInfinity = 0x7f800000;

  static Lanes of(Floats v) noexcept { return {detail::as<Stored>(v)}; }
  static Lanes of(Ints v) noexcept { return {detail::as<Stored>(v)}; }
  Floats floats() const noexcept { return detail::as<Floats>(x); }
  Ints ints() const noexcept { return detail::as<Ints>(x); }

  // Two's complement of the magnitude for negative values: integers ordered as the floats are, both
  // zeros equal. See Lanes<1>::key.
  Ints key() const noexcept {
    const Ints bits = ints();
    const Ints negative = bits >> 31;
    return ((bits & ~kSign) ^ negative) - negative;
  }
};

}  // namespace TESSERA_ISA
}  // namespace tessera

#endif
