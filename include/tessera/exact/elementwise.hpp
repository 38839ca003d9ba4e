#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tessera/exact/arguments.hpp"
#include "tessera/exact/lanes.hpp"
#include "tessera/exact/rounding_mode.hpp"

namespace tessera {
namespace detail {
inline namespace TESSERA_ISA {

template <std::size_t... I>
struct Indices {};

template <class R, class F, std::size_t... I, class... Refs>
inline void elementwise_block(const F& f, std::uint64_t i, Indices<I...>, const Refs&... refs) {
  R lanes[] = {load_lanes<R>(refs, i)...};
  f(as_argument(refs, lanes[I])...);
  (store_lanes(refs, i, lanes[I]), ...);
}

// A function of its own, so that its arithmetic stays within the StrictRounding of its caller, and
// flattened, so that `f` is inlined however large.
template <class R, std::size_t... I, class F, class... Refs>
[[gnu::noinline, gnu::flatten]] void elementwise_blocks(std::uint64_t n, const F& f,
                                                        Indices<I...> indices, Refs... refs) {
  const F local = f;  // its address is not known to anyone: no store can change it
  for (std::uint64_t i = 0; i != n; i += R::width) {
    elementwise_block<R>(local, i, indices, refs...);
  }
}

/// The last elements of one argument, followed by zeros, in place of whole lanes.
template <class Ref>
struct PaddedTail {
  using Element = typename Ref::element;
  static constexpr bool is_output = !std::is_const_v<std::remove_pointer_t<decltype(Ref::data)>>;

  PaddedTail(const Ref& ref, std::uint64_t first, std::uint64_t elements)
      : data(ref.data + first), count(elements) {
    for (std::uint64_t i = 0; i != count; ++i) padded[i] = data[i];
  }
  Ref ref() { return {padded}; }
  void write_back() const {
    if constexpr (is_output) {
      for (std::uint64_t i = 0; i != count; ++i) data[i] = padded[i];
    }
  }

  decltype(Ref::data) data;
  std::uint64_t count;
  Element padded[kNativeLanes] = {};
};

template <>
struct PaddedTail<InOutSplit> {
  PaddedTail(const InOutSplit& ref, std::uint64_t first, std::uint64_t elements)
      : high(Out<bf16>{ref.high}, first, elements),
        low(Out<std::uint16_t>{ref.low}, first, elements) {}
  InOutSplit ref() { return {high.padded, low.padded}; }
  void write_back() const {
    high.write_back();
    low.write_back();
  }

  PaddedTail<Out<bf16>> high;
  PaddedTail<Out<std::uint16_t>> low;
};

template <int field>
struct PaddedTail<InOutStochastic<field>> : PaddedTail<Out<bf16>> {
  PaddedTail(const InOutStochastic<field>& ref, std::uint64_t first, std::uint64_t elements)
      : PaddedTail<Out<bf16>>(Out<bf16>{ref.data}, first, elements), key(ref.key.from(first)) {}
  InOutStochastic<field> ref() { return {this->padded, key}; }

  RoundingKey key;
};

template <class R, std::size_t... I, class F, class... Tails>
void elementwise_tail(const F& f, Indices<I...> indices, Tails... tails) {
  elementwise_blocks<R>(R::width, f, indices, tails.ref()...);
  (tails.write_back(), ...);
}

template <std::size_t... I, class F, class... Refs>
void elementwise_all(std::uint64_t n, const F& f, Indices<I...> indices, const Refs&... refs) {
  using R = Lanes<kNativeLanes>;
  const std::uint64_t tail = n % R::width;
  const std::uint64_t whole = n - tail;
  if (whole != 0) elementwise_blocks<R>(whole, f, indices, refs...);
  if (tail != 0) elementwise_tail<R>(f, indices, PaddedTail<Refs>(refs, whole, tail)...);
}

// Not std::index_sequence: <utility> would be the heaviest include of this header.
/// @cond
template <std::size_t N, std::size_t... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <std::size_t... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};
/// @endcond

}  // namespace TESSERA_ISA
}  // namespace detail

inline namespace TESSERA_ISA {

/// Calls `f(lanes...)` for the elements [0, n) of every argument, in groups of kNativeLanes; each
/// of `refs` is an argument of exact/arguments.hpp, and `f` gets their lanes in the same order. `f`
/// is copied, has a const call operator that is a template on the lane type R and sees no
/// positions, and takes its constants by `R::splat`. The bits of an element depend on that
/// element's inputs only, not on n nor on the width. For n = 0 the pointers may be null.
template <class F, class... Refs>
void elementwise(std::uint64_t n, F f, Refs... refs) {
  static_assert(sizeof...(Refs) > 0, "tessera: elementwise needs an argument");
  const StrictRounding strict;
  detail::elementwise_all(n, f, typename detail::MakeIndices<sizeof...(Refs)>::type{}, refs...);
}

}  // namespace TESSERA_ISA
}  // namespace tessera
