#pragma once

#include <concepts>
#include <type_traits>

#include <tessera/tensor/dtype.hpp>
#include <tessera/tensor/shape.hpp>

namespace tessera {

namespace detail {

template <class T>
consteval void unknown_tensor() {
  static_assert(kNever<T>,
                "tessera: TensorTraits<T> is not specialised for this type: give element, "
                "shape(const T&), data(T&) and, if the tensor can be pointed at other memory, "
                "rebind(T&, element*)");
}

}  // namespace detail

/// How the library reads a tensor type T of yours. Specialise it, fully or partially:
///
///     template <> struct tessera::TensorTraits<MyTensor> {
///       using element = float;                         // a type that ElementTraits knows
///       static Shape shape(const MyTensor&);           // asked once, at add_unit
///       static element* data(MyTensor&);               // may be null before materialize
///       static void rebind(MyTensor&, element*);       // optional: point it at other memory
///       static bool contiguous(const MyTensor&);       // optional: absent means yes
///       static const void* identity(const MyTensor&);  // optional: absent means its address
///     };
///
/// Two arguments with one identity are the same tensor, and so tied; give it where several objects
/// are handles on one storage, and rebinding any of them rebinds all.
///
/// rebind has to keep the shape, and is given null when a lease ends; where the shape lives in the
/// memory's owner, declare `rebind(MyTensor&, element*, const Shape&)`, which is handed the shape
/// that was registered. Without rebind the tensor is copied into when a lease opens.
/// A type that knows its element type only at run time has `using element = void` and
/// `static DType dtype(const MyTensor&)`.
/// The functions are called by the thread that calls the Shard; rebind should not throw.
template <class T, class = void>
struct TensorTraits {
  // Declared, so that a use explains itself, and without `element`, so that the concept is false.
  template <class U>
  static Shape shape(const U&) {
    detail::unknown_tensor<T>();
    return {};
  }
  template <class U>
  static void* data(U&) {
    detail::unknown_tensor<T>();
    return nullptr;
  }
  template <class U>
  static void rebind(U&, void*) {
    detail::unknown_tensor<T>();
  }
};

namespace detail {

template <class T>
concept HasTensorTraits = requires {
  typename TensorTraits<T>::element;
};

template <class T>
using TraitsElement = typename TensorTraits<T>::element;

template <class T>
concept HasRuntimeDType = HasTensorTraits<T> && std::is_void_v<TraitsElement<T>> &&
    requires(const T& tensor) {
  { TensorTraits<T>::dtype(tensor) } -> std::same_as<DType>;
};

template <class T>
concept HasShape = requires(const T& tensor) {
  { TensorTraits<T>::shape(tensor) } -> std::convertible_to<Shape>;
};

template <class T>
concept HasData = requires(T& tensor) {
  { TensorTraits<T>::data(tensor) } -> std::convertible_to<TraitsElement<T>*>;
};

template <class T>
concept HasRebind = requires(T& tensor, TraitsElement<T>* memory) {
  TensorTraits<T>::rebind(tensor, memory);
};

template <class T>
concept HasShapedRebind = requires(T& tensor, TraitsElement<T>* memory, const Shape& shape) {
  TensorTraits<T>::rebind(tensor, memory, shape);
};

template <class T>
concept HasContiguous = requires(const T& tensor) {
  { TensorTraits<T>::contiguous(tensor) } -> std::convertible_to<bool>;
};

template <class T>
concept HasIdentity = requires(const T& tensor) {
  { TensorTraits<T>::identity(tensor) } -> std::convertible_to<const void*>;
};

// Misdeclared, an optional function would be ignored without a word. The declared type is asked,
// since g++ 12 takes the address even of a function whose constraints do not hold.
template <class T>
concept MisdeclaredRebind = requires {
  &TensorTraits<T>::rebind;
}
&&!std::is_invocable_v<decltype(&TensorTraits<T>::rebind), T&, TraitsElement<T>*> &&
    !std::is_invocable_v<decltype(&TensorTraits<T>::rebind), T&, TraitsElement<T>*, const Shape&>;

template <class T>
concept MisdeclaredContiguous = requires {
  &TensorTraits<T>::contiguous;
}
&&!std::is_invocable_r_v<bool, decltype(&TensorTraits<T>::contiguous), const T&>;

}  // namespace detail

/// A mutable object type with a usable TensorTraits.
template <class T>
concept ShardableTensor =
    std::is_object_v<T> && !std::is_const_v<T> && detail::HasTensorTraits<T> &&
    (Element<detail::TraitsElement<T>> || detail::HasRuntimeDType<T>)&&detail::HasShape<T> &&
    detail::HasData<T>;

/// A ShardableTensor that can be pointed at other memory, so that gathering it copies nothing.
template <class T>
concept RebindableTensor = ShardableTensor<T> &&
    (detail::HasRebind<T> || detail::HasShapedRebind<T>);

namespace detail {

template <class E>
consteval void check_element() {
  if constexpr (std::is_const_v<E>) {
    static_assert(kNever<E>,
                  "tessera: a tensor of const elements cannot be sharded, since its values are "
                  "written: drop the const from its element type");
  } else if constexpr (!KnownElement<E>) {
    (void)unknown_element<E>();
  } else {
    static_assert(std::is_trivially_copyable_v<E> && sizeof(E) == size_of(ElementTraits<E>::dtype),
                  "tessera: the element type has to be trivially copyable and of the size of the "
                  "DType that ElementTraits<E> names");
  }
}

/// One sentence for the first thing that keeps T from being a ShardableTensor, or from being the
/// one that its author meant. Use as `static_assert(check_tensor<T>())`.
template <class T>
consteval bool check_tensor() {
  if constexpr (std::is_const_v<T>) {
    static_assert(kNever<T>,
                  "tessera: a const tensor cannot be sharded, since it is written: pass it "
                  "as a non-const lvalue");
  } else if constexpr (std::is_pointer_v<T> && !HasTensorTraits<T>) {
    static_assert(
        kNever<T>,
        "tessera: a raw pointer has no shape: write ts::tensor(pointer, {rows, columns})");
  } else if constexpr (!HasTensorTraits<T>) {
    unknown_tensor<T>();
  } else if constexpr (std::is_void_v<TraitsElement<T>>) {
    static_assert(
        HasRuntimeDType<T>,
        "tessera: TensorTraits<T>::element is void, so give static DType dtype(const T&)");
  } else {
    check_element<TraitsElement<T>>();
  }
  if constexpr (HasTensorTraits<T>) {
    static_assert(HasShape<T>, "tessera: TensorTraits<T> needs static Shape shape(const T&)");
    static_assert(HasData<T>, "tessera: TensorTraits<T> needs static element* data(T&)");
    static_assert(!MisdeclaredRebind<T>,
                  "tessera: TensorTraits<T>::rebind has to be callable as rebind(T&, element*)");
    static_assert(!MisdeclaredContiguous<T>,
                  "tessera: TensorTraits<T>::contiguous has to be callable as "
                  "contiguous(const T&) and return bool");
  }
  return true;
}

/// The address of any object, with or without an operator& of its own. std::addressof is the same;
/// its header, <memory>, takes more compile time than all of tensor/.
template <class T>
constexpr T* address_of(T& object) noexcept {
  return __builtin_addressof(object);
}

}  // namespace detail
}  // namespace tessera
