#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <tessera/tensor/traits.hpp>

namespace tessera {
namespace detail {

/// Matches std::mdspan, cuda::std::mdspan, the Kokkos reference implementation and types that look
/// like them, by structure, so that no header of theirs is needed.
template <class T>
concept MdspanLike = std::is_class_v<T> && requires(const T& tensor) {
  typename T::element_type;
  { tensor.extents().rank() } -> std::convertible_to<std::size_t>;
  { tensor.extent(0) } -> std::convertible_to<std::int64_t>;
  { tensor.data_handle() } -> std::convertible_to<typename T::element_type*>;
  { tensor.is_exhaustive() } -> std::convertible_to<bool>;
  tensor.mapping();
};

template <class T>
concept RemadeWithAccessor = std::is_move_assignable_v<T> &&
    requires(const T& tensor, typename T::element_type* memory) {
  T(memory, tensor.mapping(), tensor.accessor());
};

template <class T>
concept RemadeWithMapping = std::is_move_assignable_v<T> &&
    requires(const T& tensor, typename T::element_type* memory) {
  T(memory, tensor.mapping());
};

}  // namespace detail

/// A view of extents, mapping and data handle. Its elements are taken in the order in which they
/// lie in memory, whatever the layout. It is rebound by assigning a view of the same mapping (and
/// accessor); a view that cannot be assigned is copied into. A view with holes or with elements
/// that share memory is not contiguous, and add_unit refuses it.
template <class T>
  requires detail::MdspanLike<T>
struct TensorTraits<T> {
  using element = typename T::element_type;

  static Shape shape(const T& tensor) {
    const std::size_t rank = tensor.extents().rank();
    if (rank > std::size_t{kMaxRank}) {
      detail::fail("tessera: an mdspan has ", rank, " dimensions, at most ", kMaxRank,
                   " are possible");
    }
    std::int64_t extents[kMaxRank] = {};
    for (std::size_t i = 0; i < rank; ++i) {
      extents[i] =
          detail::to_extent(tensor.extent(static_cast<decltype(tensor.extents().rank())>(i)));
    }
    return Shape(std::span<const std::int64_t>(extents, rank));
  }

  static element* data(T& tensor) { return tensor.data_handle(); }

  static void rebind(T& tensor, element* memory) requires detail::RemadeWithAccessor<T> ||
      detail::RemadeWithMapping<T> {
    if constexpr (detail::RemadeWithAccessor<T>) {
      tensor = T(memory, tensor.mapping(), tensor.accessor());
    } else {
      tensor = T(memory, tensor.mapping());
    }
  }

  static bool contiguous(const T& tensor) {
    if constexpr (requires { tensor.is_unique(); }) {
      if (!tensor.is_unique()) return false;
    }
    return tensor.is_exhaustive();
  }
};

}  // namespace tessera
