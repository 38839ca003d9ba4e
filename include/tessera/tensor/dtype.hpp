#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tessera {

/// What the elements of a tensor are. The opaque types are bytes that are moved and never
/// computed with.
enum class DType : std::uint8_t {
  f32,
  bf16,
  f16,
  f64,
  f8e4m3,
  f8e5m2,
  i64,
  i32,
  i16,
  i8,
  u8,
  boolean,
  opaque1,
  opaque2,
  opaque4,
  opaque8,
  opaque16,
};

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::opaque1: return 1;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
    case DType::opaque2: return 2;
    case DType::f32:
    case DType::i32:
    case DType::opaque4: return 4;
    case DType::f64:
    case DType::i64:
    case DType::opaque8: return 8;
    case DType::opaque16: return 16;
  }
  return 0;
}

/// The enumerator's name, for messages and files.
constexpr std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::f8e4m3: return "f8e4m3";
    case DType::f8e5m2: return "f8e5m2";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i16: return "i16";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::boolean: return "boolean";
    case DType::opaque1: return "opaque1";
    case DType::opaque2: return "opaque2";
    case DType::opaque4: return "opaque4";
    case DType::opaque8: return "opaque8";
    case DType::opaque16: return "opaque16";
  }
  return "unknown";
}

/// True for the types that have gradients, master weights and moments. Tensors of any other type
/// are gathered and saved, and have to be registered as `frozen(...)`.
constexpr bool is_trainable(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

namespace detail {

template <class>
inline constexpr bool kNever = false;

template <class E>
consteval DType unknown_element() {
  static_assert(kNever<E>,
                "tessera: ElementTraits<E> is not specialised for this element type: give "
                "static constexpr DType dtype (an opaque type where it is only moved)");
  return DType::opaque1;
}

template <DType kDType>
struct ElementOf {
  static constexpr DType dtype = kDType;
};

}  // namespace detail

/// Names the DType of an element type. Specialise it for your own types, which have to be
/// trivially copyable and of the DType's size:
///
///     template <> struct tessera::ElementTraits<my::bfloat16> {
///       static constexpr auto dtype = tessera::DType::bf16;
///     };
///
/// cuda.hpp knows __nv_bfloat16.
template <class E>
struct ElementTraits {
  using not_specialised = void;
  static constexpr DType dtype = detail::unknown_element<E>();
};

struct bf16;  // exact/bf16.hpp

// clang-format off
template <> struct ElementTraits<float> : detail::ElementOf<DType::f32> {};
template <> struct ElementTraits<double> : detail::ElementOf<DType::f64> {};
template <> struct ElementTraits<bf16> : detail::ElementOf<DType::bf16> {};
template <> struct ElementTraits<bool> : detail::ElementOf<DType::boolean> {};
template <> struct ElementTraits<signed char> : detail::ElementOf<DType::i8> {};
template <> struct ElementTraits<unsigned char> : detail::ElementOf<DType::u8> {};
template <> struct ElementTraits<short> : detail::ElementOf<DType::i16> {};
template <> struct ElementTraits<int> : detail::ElementOf<DType::i32> {};
template <> struct ElementTraits<long> : detail::ElementOf<sizeof(long) == 8 ? DType::i64 : DType::i32> {};
template <> struct ElementTraits<long long> : detail::ElementOf<DType::i64> {};
// Unsigned words are moved, not computed with. 16 bits are left out on purpose: code without a
// bf16 type keeps its bf16 in std::uint16_t, and only its author can say so.
template <> struct ElementTraits<unsigned> : detail::ElementOf<DType::opaque4> {};
template <> struct ElementTraits<unsigned long> : detail::ElementOf<sizeof(long) == 8 ? DType::opaque8 : DType::opaque4> {};
template <> struct ElementTraits<unsigned long long> : detail::ElementOf<DType::opaque8> {};
template <> struct ElementTraits<std::byte> : detail::ElementOf<DType::opaque1> {};
// clang-format on

namespace detail {

template <class E>
concept KnownElement = !requires {
  typename ElementTraits<E>::not_specialised;
}
&&requires {
  { ElementTraits<E>::dtype } -> std::convertible_to<DType>;
};

}  // namespace detail

/// An element type that can be sharded: mutable, trivially copyable, named by ElementTraits, and
/// as large as its DType says.
template <class E>
concept Element = std::is_object_v<E> && !std::is_const_v<E> && !std::is_volatile_v<E> &&
                  detail::KnownElement<E> && std::is_trivially_copyable_v<E> &&
                  sizeof(E) == size_of(ElementTraits<E>::dtype);

}  // namespace tessera
