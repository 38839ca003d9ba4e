#pragma once

#include <cstdint>

#include "tessera/exact/bf16.hpp"
#include "tessera/exact/config.hpp"
#include "tessera/exact/lanes.hpp"
#include "tessera/exact/split_float.hpp"
#include "tessera/exact/stochastic.hpp"

namespace tessera {

// The arguments of an element-wise function; T is float or bf16, converted to fp32 and back. An
// output may be the same array as an input of the same T, but may not overlap one otherwise.

/// Read: `f` gets `const R&`.
template <class T>
struct In {
  using element = T;
  const T* data;
  TESSERA_HD In from(std::uint64_t i) const { return {data + i}; }
};
/// Written: `f` gets `R&`, which holds zeros.
template <class T>
struct Out {
  using element = T;
  T* data;
  TESSERA_HD Out from(std::uint64_t i) const { return {data + i}; }
};
/// Read and written: `f` gets `R&`.
template <class T>
struct InOut {
  using element = T;
  T* data;
  TESSERA_HD InOut from(std::uint64_t i) const { return {data + i}; }
};
/// Read and written exactly, in two arrays of halves (exact/split_float.hpp): `f` gets `R&`.
struct InOutSplit {
  bf16* high;
  std::uint16_t* low;
  TESSERA_HD InOutSplit from(std::uint64_t i) const { return {high + i, low + i}; }
};
/// Read exactly, and rounded stochastically when it is written (exact/stochastic.hpp): `f` gets
/// `R&`. Arguments of one call have the same key and different fields, whose random bits are
/// independent.
template <int field>
struct InOutStochastic {
  bf16* data;
  RoundingKey key = {};
  TESSERA_HD InOutStochastic from(std::uint64_t i) const { return {data + i, key.from(i)}; }
};

namespace detail {

TESSERA_EXEC_CHECK_DISABLE
template <class R, class T>
TESSERA_HD R load_lanes(const In<T>& ref, std::uint64_t i) {
  return R::load(ref.data + i);
}
TESSERA_EXEC_CHECK_DISABLE
template <class R, class T>
TESSERA_HD R load_lanes(const InOut<T>& ref, std::uint64_t i) {
  return R::load(ref.data + i);
}
TESSERA_EXEC_CHECK_DISABLE
template <class R, class T>
TESSERA_HD R load_lanes(const Out<T>&, std::uint64_t) {
  return R::splat(0.0f);
}

TESSERA_EXEC_CHECK_DISABLE
template <class R>
TESSERA_HD R load_lanes(const InOutSplit& ref, std::uint64_t i) {
  float joined[R::width];
  for (int k = 0; k != R::width; ++k) {
    const std::uint64_t at = i + static_cast<std::uint64_t>(k);
    joined[k] = join_float(ref.high[at], ref.low[at]);
  }
  return R::load(joined);
}
TESSERA_EXEC_CHECK_DISABLE
template <class R, int field>
TESSERA_HD R load_lanes(const InOutStochastic<field>& ref, std::uint64_t i) {
  return R::load(ref.data + i);
}

TESSERA_EXEC_CHECK_DISABLE
template <class T, class R>
TESSERA_HD const R& as_argument(const In<T>&, const R& lanes) {
  return lanes;
}
TESSERA_EXEC_CHECK_DISABLE
template <class T, class R>
TESSERA_HD R& as_argument(const Out<T>&, R& lanes) {
  return lanes;
}
TESSERA_EXEC_CHECK_DISABLE
template <class T, class R>
TESSERA_HD R& as_argument(const InOut<T>&, R& lanes) {
  return lanes;
}

TESSERA_EXEC_CHECK_DISABLE
template <class R>
TESSERA_HD R& as_argument(const InOutSplit&, R& lanes) {
  return lanes;
}
TESSERA_EXEC_CHECK_DISABLE
template <int field, class R>
TESSERA_HD R& as_argument(const InOutStochastic<field>&, R& lanes) {
  return lanes;
}

TESSERA_EXEC_CHECK_DISABLE
template <class T, class R>
TESSERA_HD void store_lanes(const In<T>&, std::uint64_t, const R&) {}
TESSERA_EXEC_CHECK_DISABLE
template <class T, class R>
TESSERA_HD void store_lanes(const Out<T>& ref, std::uint64_t i, const R& lanes) {
  lanes.store(ref.data + i);
}
TESSERA_EXEC_CHECK_DISABLE
template <class T, class R>
TESSERA_HD void store_lanes(const InOut<T>& ref, std::uint64_t i, const R& lanes) {
  lanes.store(ref.data + i);
}
TESSERA_EXEC_CHECK_DISABLE
template <class R>
TESSERA_HD void store_lanes(const InOutSplit& ref, std::uint64_t i, const R& lanes) {
  float values[R::width];
  lanes.store(values);
  for (int k = 0; k != R::width; ++k) {
    const std::uint64_t at = i + static_cast<std::uint64_t>(k);
    const SplitFloat halves = split_float(values[k]);
    ref.high[at] = halves.high;
    ref.low[at] = halves.low;
  }
}
TESSERA_EXEC_CHECK_DISABLE
template <int field, class R>
TESSERA_HD void store_lanes(const InOutStochastic<field>& ref, std::uint64_t i, const R& lanes) {
  float values[R::width];
  lanes.store(values);
  for (int k = 0; k != R::width; ++k) {
    const std::uint64_t at = i + static_cast<std::uint64_t>(k);
    ref.data[at] = to_bf16_stochastic(values[k], ref.key.template bits<field>(at));
  }
}

/// Whether an argument's roundings want a key.
template <class Ref>
inline constexpr bool kRoundsAtRandom = false;
template <int field>
inline constexpr bool kRoundsAtRandom<InOutStochastic<field>> = true;

/// The argument with this key, where it wants one.
template <class Ref>
TESSERA_HD Ref keyed(const Ref& ref, const RoundingKey&) {
  return ref;
}
template <int field>
TESSERA_HD InOutStochastic<field> keyed(const InOutStochastic<field>& ref, const RoundingKey& key) {
  return {ref.data, key};
}

}  // namespace detail
}  // namespace tessera
