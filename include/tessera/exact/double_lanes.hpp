#pragma once

#include "tessera/exact/config.hpp"
#include "tessera/exact/lanes.hpp"

namespace tessera {
namespace detail {
inline namespace TESSERA_ISA {

/// W doubles, each operation rounded once whatever the flags: the inner loop of cell sums. W = 1
/// exists everywhere, CUDA devices included; 2, 4 and 8 as Lanes of the same bytes.
template <int W>
struct DoubleLanes;

template <>
struct DoubleLanes<1> {
  static constexpr int width = 1;
  double x;

  /// Exact, denormals included.
  static TESSERA_HD DoubleLanes load(const float* from) noexcept {
    double r;
    TESSERA_F64_LOAD_F32(r, from);
    return {r};
  }
  TESSERA_HD void store(double* to) const noexcept { *to = x; }

  friend TESSERA_HD DoubleLanes operator+(DoubleLanes a, DoubleLanes b) noexcept {
    double r;
    TESSERA_F64_OP(add, +, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD DoubleLanes operator*(DoubleLanes a, DoubleLanes b) noexcept {
    double r;
    TESSERA_F64_OP(mul, *, r, a.x, b.x);
    return {r};
  }
  friend TESSERA_HD DoubleLanes abs(DoubleLanes a) noexcept {
    return {__builtin_bit_cast(double, bits_of(a.x) & 0x7fffffffffffffffu)};
  }
};

#if TESSERA_NATIVE_LANES > 1
template <int W>
struct DoubleVectorsOf;
#define TESSERA_DOUBLE_VECTORS_OF(W)                               \
  template <>                                                      \
  struct DoubleVectorsOf<W> {                                      \
    typedef double Doubles __attribute__((vector_size(8 * (W))));  \
    typedef long long Longs __attribute__((vector_size(8 * (W)))); \
    using Stored = TESSERA_STORED(Doubles);                        \
  }
TESSERA_DOUBLE_VECTORS_OF(2);
#if TESSERA_NATIVE_LANES >= 8
TESSERA_DOUBLE_VECTORS_OF(4);
#endif
#if TESSERA_NATIVE_LANES >= 16
TESSERA_DOUBLE_VECTORS_OF(8);
#endif
#undef TESSERA_DOUBLE_VECTORS_OF

template <int W>
struct DoubleLanes {
  static constexpr int width = W;
  using Doubles = typename DoubleVectorsOf<W>::Doubles;
  using Longs = typename DoubleVectorsOf<W>::Longs;
  using Stored = typename DoubleVectorsOf<W>::Stored;
  Stored x;

  static DoubleLanes load(const float* from) noexcept {
    Doubles r;
    TESSERA_PD_LOAD_F32(r, reinterpret_cast<const float(*)[W]>(from));
    return of(r);
  }
  void store(double* to) const noexcept {
    const Doubles r = doubles();
    __builtin_memcpy(to, &r, sizeof r);
  }

  friend DoubleLanes operator+(DoubleLanes a, DoubleLanes b) noexcept {
    Doubles r;
    TESSERA_PD_OP(add, r, a.doubles(), b.doubles());
    return of(r);
  }
  friend DoubleLanes operator*(DoubleLanes a, DoubleLanes b) noexcept {
    Doubles r;
    TESSERA_PD_OP(mul, r, a.doubles(), b.doubles());
    return of(r);
  }
  friend DoubleLanes abs(DoubleLanes a) noexcept {
    return of(reinterpret_cast<Doubles>(reinterpret_cast<Longs>(a.doubles()) & 0x7fffffffffffffff));
  }

 private:
  static DoubleLanes of(Doubles v) noexcept { return {as<Stored>(v)}; }
  Doubles doubles() const noexcept { return as<Doubles>(x); }
};
#endif

inline constexpr int kNativeDoubleLanes = kNativeLanes == 1 ? 1 : kNativeLanes / 2;

}  // namespace TESSERA_ISA
}  // namespace detail
}  // namespace tessera
