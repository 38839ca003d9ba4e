#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tessera/exact/lanes.hpp"
#include "tessera/exact/rounding_mode.hpp"

namespace tessera {

// The arguments of an element-wise function; T is float or bf16, converted to fp32 and back. An
// output may be the same array as an input of the same T, but may not overlap one otherwise.

/// Read: `f` gets `const R&`.
template <class T>
struct In {
  using element = T;
  const T* data;
};
/// Written: `f` gets `R&`, which holds zeros.
template <class T>
struct Out {
  using element = T;
  T* data;
};
/// Read and written: `f` gets `R&`.
template <class T>
struct InOut {
  using element = T;
  T* data;
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
/// of `refs` is In, Out or InOut, and `f` gets their lanes in the same order. `f` is copied, has a
/// const call operator that is a template on the lane type R and sees no positions, and takes its
/// constants by `R::splat`. The bits of an element depend on that element's inputs only, not on n
/// nor on the width. For n = 0 the pointers may be null.
template <class F, class... Refs>
void elementwise(std::uint64_t n, F f, Refs... refs) {
  static_assert(sizeof...(Refs) > 0, "tessera: elementwise needs an In, Out or InOut");
  const StrictRounding strict;
  detail::elementwise_all(n, f, typename detail::MakeIndices<sizeof...(Refs)>::type{}, refs...);
}

}  // namespace TESSERA_ISA
}  // namespace tessera
