#pragma once

#include <type_traits>

#include <tessera/tensor/traits.hpp>

namespace tessera {

/// A raw pointer of yours and its extents: made by `ts::tensor(p.wq, {rows, columns})`. It refers
/// to your pointer variable and may be passed as a temporary; the variable has to keep its address
/// until the Shard ends. Rebinding writes the variable: null outside a lease, the weights inside.
template <class E>
class PointerTensor {
 public:
  PointerTensor(E*& pointer, const Shape& shape) noexcept : pointer_(&pointer), shape_(shape) {}

  /// Your variable.
  E*& pointer() const noexcept { return *pointer_; }
  const Shape& shape() const noexcept { return shape_; }

 private:
  E** pointer_;
  Shape shape_;
};

template <class E>
struct TensorTraits<PointerTensor<E>> {
  using element = E;
  static const Shape& shape(const PointerTensor<E>& tensor) noexcept { return tensor.shape(); }
  static E* data(PointerTensor<E>& tensor) noexcept { return tensor.pointer(); }
  static void rebind(PointerTensor<E>& tensor, E* memory) noexcept { tensor.pointer() = memory; }
};

namespace detail {

template <class T>
inline constexpr bool kIsPointerTensor = false;
template <class E>
inline constexpr bool kIsPointerTensor<PointerTensor<E>> = true;

template <class P>
consteval bool check_pointer() {
  static_assert(kNever<P>,
                "tessera: ts::tensor takes your own pointer variable as a non-const lvalue, since "
                "the variable is pointed at the gathered weights");
  return true;
}

}  // namespace detail

/// The tensor of `shape` at `pointer`, a pointer variable of yours that the library will rebind.
/// Two tensors of the same variable are the same (tied) tensor.
template <class E>
[[nodiscard]] PointerTensor<E> tensor(E*& pointer, const Shape& shape) noexcept {
  static_assert(std::is_object_v<E>,
                "tessera: ts::tensor takes a pointer to elements, not to void");
  return {pointer, shape};
}

/// Anything but a pointer variable explains itself.
template <class P>
PointerTensor<std::remove_pointer_t<std::decay_t<P>>> tensor(P&&, const Shape&) {
  static_assert(detail::check_pointer<P>());
  __builtin_unreachable();
}

}  // namespace tessera
