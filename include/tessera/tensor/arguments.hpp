#pragma once

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <tessera/tensor/handle.hpp>
#include <tessera/tensor/modifiers.hpp>

namespace tessera {
namespace detail {

/// A struct of the user's that lists its tensors: `tensors_of(T&)`, found by argument-dependent
/// look-up.
template <class T>
concept TensorStruct = std::is_class_v<T> && !ReferringArgument<std::remove_cv_t<T>> &&
                       !HasTensorTraits<std::remove_cv_t<T>> && requires(T & object) {
  tensors_of(object);
};

template <class T>
concept TupleLike = requires {
  std::tuple_size<std::remove_cvref_t<T>>::value;
};

/// False when it is known from the type that T has no gradient.
template <class T>
consteval bool may_be_trainable() {
  if constexpr (HasRuntimeDType<T>) {
    return true;
  } else {
    return is_trainable(ElementTraits<TraitsElement<T>>::dtype);
  }
}

template <class T, bool kFrozen>
consteval void check_trainable() {
  check_tensor<T>();
  if constexpr (ShardableTensor<T>) {
    static_assert(kFrozen || may_be_trainable<T>(),
                  "tessera: only f32, bf16 and f16 tensors are trained: pass this one as "
                  "ts::frozen(tensor)");
  }
}

/// One sentence for the first thing that keeps A, a type as a forwarding reference deduces it,
/// from being an argument of add_unit. Use as `static_assert(check_argument<A, kFrozen>())`.
template <class A, bool kFrozen>
consteval bool check_argument() {
  using T = std::remove_reference_t<A>;
  if constexpr (kIsPointerTensor<std::remove_const_t<T>>) {
    check_trainable<std::remove_const_t<T>, kFrozen>();
  } else if constexpr (!std::is_lvalue_reference_v<A>) {
    check_lvalue<A>();
  } else if constexpr (TensorStruct<T>) {
    static_assert(TupleLike<decltype(tensors_of(std::declval<T&>()))>,
                  "tessera: tensors_of(T&) has to return std::tie(...) of the tensors");
  } else {
    check_trainable<T, kFrozen>();
  }
  return true;
}

/// What holds for member `index` of a struct, given what was said about the struct and about it.
inline Said inherit(const Said& outer, Said inner, std::size_t index) {
  if (!outer.name.empty()) {
    if (inner.name.empty()) inner.name = std::to_string(index);
    inner.name.insert(0, outer.name + ".");
  }
  inner.decay = inner.decay && outer.decay;
  if (inner.group < 0) inner.group = outer.group;
  return inner;
}

template <bool kFrozen, class Sink, class T>
void emit(Sink& sink, T& tensor, Said&& said) {
  TensorHandle handle = TensorHandle::of(tensor);
  if (!kFrozen && !is_trainable(handle.dtype())) {
    fail("tessera: tensor '", said.name, "' of shape ", handle.shape(), " has the type ",
         handle.dtype(),
         ": only f32, bf16 and f16 tensors are trained: pass this one as ts::frozen(tensor)");
  }
  TensorOptions options{std::move(said.name), !kFrozen,
                        said.decay,           said.group < 0 ? 0 : said.group,
                        said.group >= 0,      said.slice};
  sink(std::move(handle), std::move(options));
}

/// Hands `sink` every tensor of one argument, in order. A: the argument's type as a forwarding
/// reference deduces it. `outer`: what was said about the struct that it is member `index` of, or
/// null.
template <bool kFrozen, class A, class Sink>
void visit_argument(Sink& sink, std::remove_reference_t<A>& argument, const Said* outer,
                    std::size_t index);

template <bool kFrozen, class Tuple, class Sink, std::size_t... I>
void visit_members(Sink& sink, Tuple&& tuple, const Said& said, std::index_sequence<I...>) {
  // A reference in the tuple is an lvalue, and a value in a temporary tuple is a temporary.
  (detail::visit_argument<kFrozen, decltype(std::get<I>(std::forward<Tuple>(tuple)))>(
       sink, std::get<I>(tuple), &said, I),
   ...);
}

template <bool kFrozen, class A, class Sink>
void visit_unmodified(Sink& sink, std::remove_reference_t<A>& argument, Said&& said) {
  static_assert(check_argument<A, kFrozen>());
  using T = std::remove_reference_t<A>;
  // Where nothing is done below, the assertion above has said why.
  if constexpr (kIsPointerTensor<std::remove_const_t<T>>) {
    std::remove_const_t<T> tensor = argument;  // it only refers to the user's pointer
    detail::emit<kFrozen>(sink, tensor, std::move(said));
  } else if constexpr (!std::is_lvalue_reference_v<A>) {
  } else if constexpr (TensorStruct<T>) {
    if (said.slice) fail("tessera: sliced(...) is for one tensor, not for a struct of them");
    using Tuple = decltype(tensors_of(argument));
    if constexpr (TupleLike<Tuple>) {
      detail::visit_members<kFrozen>(
          sink, tensors_of(argument), said,
          std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<Tuple>>>{});
    }
  } else if constexpr (ShardableTensor<T>) {
    detail::emit<kFrozen>(sink, argument, std::move(said));
  }
}

template <bool kFrozen, class A, class Sink>
void visit_argument(Sink& sink, std::remove_reference_t<A>& argument, const Said* outer,
                    std::size_t index) {
  using T = std::remove_cvref_t<A>;
  if constexpr (kIsModified<T>) {
    typename T::Argument inner = argument.argument;  // a reference, or a copy that only refers
    detail::visit_unmodified<kFrozen || T::kIsFrozen, typename T::Argument>(
        sink, inner,
        outer == nullptr ? Said(argument.said) : detail::inherit(*outer, argument.said, index));
  } else {
    detail::visit_unmodified<kFrozen, A>(
        sink, argument, outer == nullptr ? Said{} : detail::inherit(*outer, Said{}, index));
  }
}

template <class A>
struct ArgumentElement {
  using type = TraitsElement<A>;
};
template <class E>
struct ArgumentElement<E*> {
  using type = E;
};
template <class A, bool kFrozen>
struct ArgumentElement<Modified<A, kFrozen>> : ArgumentElement<std::remove_cvref_t<A>> {};

}  // namespace detail

/// Calls `sink(TensorHandle&&, TensorOptions&&)` for every tensor of the arguments, in order. An
/// argument is one of
///
/// - a tensor (ShardableTensor), by lvalue;
/// - `ts::tensor(pointer, {rows, columns})`, by lvalue or as a temporary;
/// - a struct, by lvalue, for which `tensors_of(T&)` in its namespace returns std::tie of any of
///   these (a std::tuple where modifiers are among them); structs may nest;
/// - any of these in ts::frozen, ts::named, ts::no_decay, ts::in_group.
///
/// Anything else does not compile, in one sentence. Error for a tensor that is too large, and for
/// one that is neither frozen nor trainable where that shows at run time only.
template <class Sink, class... A>
void for_each_tensor(Sink&& sink, A&&... arguments) {
  (detail::visit_argument<false, A>(sink, arguments, nullptr, 0), ...);
}

/// The element type of a tensor argument: a tensor, a pointer variable, ts::tensor(...), or one of
/// these in modifiers; references and const are ignored. void where it is known at run time only.
template <class A>
using element_of = typename detail::ArgumentElement<std::remove_cvref_t<A>>::type;

/// TensorHandle::identity() of an argument's tensor, without making a handle: for look-ups by a
/// tensor, a pointer variable, ts::tensor(...), or one of these in modifiers.
template <class A>
const void* identity_of(const A& argument) {
  if constexpr (detail::kIsModified<A>) {
    return tessera::identity_of(argument.argument);
  } else if constexpr (detail::kIsPointerTensor<A>) {
    return &argument.pointer();
  } else if constexpr (detail::HasIdentity<A>) {
    return TensorTraits<A>::identity(argument);
  } else {
    return detail::address_of(argument);
  }
}

}  // namespace tessera
