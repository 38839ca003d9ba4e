#pragma once

// What holds for every tensor adapter. An adapter's test describes itself by a Case:
//
//   struct Case {
//     using element = ...;
//     static constexpr bool rebindable = ...;
//     Shape shape() const;          // of the tensor, at least 4 elements
//     decltype(auto) argument();    // what add_unit is given, for the same tensor each time
//     element* seen();              // where the user's code finds the elements
//     element* own_memory();        // where they lay at the beginning, null where nowhere
//   };
//
// and calls conformance::check<Case>(). Cases are default-constructible.

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>
#include <tessera/tensor/arguments.hpp>

namespace conformance {

struct Collected {
  tessera::TensorHandle handle;
  tessera::TensorOptions options;
};

template <class... A>
std::vector<Collected> collect(A&&... arguments) {
  std::vector<Collected> all;
  tessera::for_each_tensor(
      [&](tessera::TensorHandle&& handle, tessera::TensorOptions&& options) {
        all.push_back({std::move(handle), std::move(options)});
      },
      std::forward<A>(arguments)...);
  return all;
}

template <class Case>
tessera::TensorHandle handle_of(Case& c) {
  return collect(tessera::frozen(c.argument())).at(0).handle;
}

/// Distinct bytes for element `i`.
template <class E>
E value(std::size_t i) {
  E element{};
  std::memset(&element, 0, sizeof element);
  const unsigned char byte = static_cast<unsigned char>(i & 1U);  // a bool holds 0 or 1
  std::memcpy(&element, &byte, 1);
  return element;
}

template <class E>
bool same(const E& a, const E& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Memory of a slot, without the constructors of the elements.
template <class E>
class Slot {
 public:
  explicit Slot(std::size_t n) : bytes_((n + 1) * sizeof(E)) {}
  E* data() { return reinterpret_cast<E*>(bytes_.data()); }

 private:
  std::vector<unsigned char> bytes_;  // from operator new: aligned for every element type here
};

template <class Case>
void check_rebinding(Case& c, const tessera::TensorHandle& handle) {
  using E = typename Case::element;
  const auto n = static_cast<std::size_t>(c.shape().size());
  Slot<E> first(n);
  Slot<E> second(n);
  CHECK(handle.rebindable());

  handle.rebind(nullptr);  // outside a lease
  CHECK(handle.data() == nullptr);
  CHECK(c.seen() == nullptr);
  CHECK(handle.current_shape() == c.shape());

  for (Slot<E>* slot : {&first, &second, &first}) {  // the slot moves between two leases
    handle.rebind(slot->data());
    CHECK(handle.data() == slot->data());
    CHECK(c.seen() == slot->data());
    CHECK(handle.current_shape() == c.shape());
    CHECK(handle.contiguous());
    for (std::size_t i = 0; i < n; ++i) static_cast<E*>(handle.data())[i] = value<E>(i);
    for (std::size_t i = 0; i < n; ++i) CHECK(same(c.seen()[i], value<E>(i)));
  }
  handle.rebind(nullptr);
  CHECK(c.seen() == nullptr);
  CHECK_NOTHROW(handle.require_same_size("w"));
}

template <class Case>
void check_copying(Case& c, const tessera::TensorHandle& handle) {
  using E = typename Case::element;
  const auto n = static_cast<std::size_t>(c.shape().size());
  CHECK_FALSE(handle.rebindable());
  CHECK_THROWS_AS(handle.rebind(nullptr), tessera::Error);
  REQUIRE(c.seen() != nullptr);
  CHECK(handle.data() == c.seen());
  CHECK(handle.data() == c.own_memory());
  std::vector<unsigned char> bytes(static_cast<std::size_t>(handle.bytes()));
  for (std::size_t i = 0; i < n; ++i) {
    const E element = value<E>(i);
    std::memcpy(bytes.data() + i * sizeof(E), &element, sizeof(E));
  }
  std::memcpy(handle.data(), bytes.data(), bytes.size());  // in
  for (std::size_t i = 0; i < n; ++i) CHECK(same(c.seen()[i], value<E>(i)));
  CHECK(std::memcmp(handle.data(), bytes.data(), bytes.size()) == 0);  // out
}

template <class Case>
void check() {
  using E = typename Case::element;
  Case c;
  Case other;
  const tessera::TensorHandle handle = handle_of(c);

  CHECK(handle.shape() == c.shape());
  CHECK(handle.current_shape() == c.shape());
  CHECK(handle.dtype() == tessera::ElementTraits<E>::dtype);
  CHECK(handle.bytes() == c.shape().size() * std::int64_t{sizeof(E)});
  CHECK(handle.contiguous());
  CHECK(handle.data() == c.own_memory());
  static_assert(std::is_same_v<tessera::element_of<decltype(c.argument())>, E>);

  // The same tensor is the same under any wrapping; another tensor is another one.
  CHECK(handle == handle_of(c));
  CHECK_FALSE(handle == handle_of(other));
  CHECK(handle.identity() == tessera::identity_of(c.argument()));
  const Collected wrapped =
      collect(tessera::named(
                  "w", tessera::in_group(tessera::no_decay(tessera::frozen(c.argument())), 2)))
          .at(0);
  CHECK(wrapped.handle == handle);
  CHECK(wrapped.options.name == "w");
  CHECK_FALSE(wrapped.options.trainable);
  CHECK_FALSE(wrapped.options.decay);
  CHECK(wrapped.options.group == 2);

  if constexpr (Case::rebindable) {
    check_rebinding(c, handle);
  } else {
    check_copying(c, handle);
  }
}

}  // namespace conformance
