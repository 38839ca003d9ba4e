#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/tensor/handle.hpp>
#include <tessera/tensor/slice.hpp>

namespace tessera {
namespace detail {

/// What the modifiers around one argument said. Frozen is part of the type, so that a tensor that
/// cannot be trained is refused by the compiler.
struct Said {
  std::string name;
  bool decay = true;
  int group = -1;  // -1: nothing said
  std::optional<Slice> slice;
};

/// An argument of add_unit with what was said about it. A is `T&` for a tensor, or a struct of
/// tensors, of the user's, and a PointerTensor by value.
template <class A, bool kFrozen>
struct Modified {
  using Argument = A;
  static constexpr bool kIsFrozen = kFrozen;
  A argument;
  Said said;
};

template <class T>
inline constexpr bool kIsModified = false;
template <class A, bool kFrozen>
inline constexpr bool kIsModified<Modified<A, kFrozen>> = true;

/// Values that only refer to a tensor, and so may be passed as temporaries.
template <class T>
concept ReferringArgument = kIsModified<T> || kIsPointerTensor<T>;

template <class A>
consteval bool check_lvalue() {
  static_assert(std::is_lvalue_reference_v<A> || ReferringArgument<std::remove_cvref_t<A>>,
                "tessera: pass tensors by lvalue: the Shard keeps their address");
  return true;
}

template <class A, bool kFrozen>
Modified<A, kFrozen> modified(const Modified<A, kFrozen>& argument) {
  return argument;
}
template <class E>
Modified<PointerTensor<E>, false> modified(const PointerTensor<E>& argument) {
  return {argument, {}};
}
template <class T>
  requires(!ReferringArgument<std::remove_cv_t<T>>)
Modified<T&, false> modified(T& argument) { return {argument, {}}; }

}  // namespace detail

// The modifiers wrap one argument of add_unit: a tensor, a struct of tensors, or another modifier's
// result, in any order. The result refers to the tensor. Of two names or groups for one argument
// the outer one holds. A struct's frozen and no_decay hold for all of its members, its group for
// those that have none of their own.

/// The tensor is gathered and saved, and has no gradient and no optimizer state.
template <class A>
[[nodiscard]] auto frozen(A&& argument) {
  static_assert(detail::check_lvalue<A>());
  auto inner = detail::modified(argument);
  return detail::Modified<decltype(inner.argument), true>{
      static_cast<decltype(inner.argument)>(inner.argument), std::move(inner.said)};
}

/// The tensor's name, or the prefix of the names in a struct ("layer0" makes "layer0.wq").
template <class A>
[[nodiscard]] auto named(std::string name, A&& argument) {
  static_assert(detail::check_lvalue<A>());
  auto result = detail::modified(argument);
  result.said.name = std::move(name);
  return result;
}

/// The optimizer applies no weight decay to the tensor.
template <class A>
[[nodiscard]] auto no_decay(A&& argument) {
  static_assert(detail::check_lvalue<A>());
  auto result = detail::modified(argument);
  result.said.decay = false;
  return result;
}

/// The tensor is this rank's slice of a larger one, of which the other ranks of the mesh's tensor
/// axis have the rest: the norm counts each rank's part, initialisers are asked for elements of the
/// whole. Without it a tensor is the same on all of them, and counted once. Not for structs.
template <class A>
[[nodiscard]] auto sliced(const Slice& slice, A&& argument) {
  static_assert(detail::check_lvalue<A>());
  auto result = detail::modified(argument);
  result.said.slice = slice;
  return result;
}

/// The tensor belongs to the optimizer's parameter group `group`; Error when negative.
template <class A>
[[nodiscard]] auto in_group(A&& argument, int group) {
  static_assert(detail::check_lvalue<A>());
  if (group < 0) {
    detail::fail("tessera: in_group was given the group ", group, ": groups count from 0");
  }
  auto result = detail::modified(argument);
  result.said.group = group;
  return result;
}

}  // namespace tessera
