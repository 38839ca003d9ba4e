#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <tessera/tensor/mdspan.hpp>          // IWYU pragma: export
#include <tessera/tensor/pointer_tensor.hpp>  // IWYU pragma: export
#include <tessera/tensor/traits.hpp>

/// The tensor types that need no TensorTraits of yours: std::span, std::vector, a pointer with
/// extents (ts::tensor) and anything like an mdspan.

namespace tessera {

/// A span of one dimension. Outside a lease it is a null pointer *with its size kept*: size() and
/// empty() say what they said before, and no element may be touched. A span that was emptied or
/// reassigned in between has its registered size again after the next rebind.
template <class E, std::size_t N>
struct TensorTraits<std::span<E, N>> {
  using element = E;
  static Shape shape(const std::span<E, N>& span) { return Shape{span.size()}; }
  static E* data(std::span<E, N>& span) noexcept { return span.data(); }
  static void rebind(std::span<E, N>& span, E* memory, const Shape& shape) noexcept {
    span = std::span<E, N>(memory, static_cast<std::size_t>(shape.size()));
  }
};

/// A vector owns its memory, so it is copied into when a lease opens, and it keeps its own full
/// copy all the time. Its size has to stay what it was at add_unit. std::vector<bool> has no
/// elements to point at and is no tensor.
template <class E, class Allocator>
  requires(!std::is_same_v<E, bool>)
struct TensorTraits<std::vector<E, Allocator>> {
  using element = E;
  static Shape shape(const std::vector<E, Allocator>& vector) { return Shape{vector.size()}; }
  static E* data(std::vector<E, Allocator>& vector) noexcept { return vector.data(); }
};

}  // namespace tessera
