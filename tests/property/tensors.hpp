#pragma once
// A rank's tensors of a case, of types and number known at run time only.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tessera/exact/bf16.hpp>
#include <tessera/tensor/adapters.hpp>
#include <tessera/tensor/arguments.hpp>

#include "property/expected.hpp"

namespace property {

struct Block16 {
  unsigned char bytes[16];
};

}  // namespace property

template <>
struct tessera::ElementTraits<property::Block16> {
  static constexpr DType dtype = DType::opaque16;
};

namespace property {

/// A tensor in one of three forms; the form in use is the one that is registered.
template <class E>
struct Forms {
  E* pointer = nullptr;
  std::span<E> span;
  std::vector<E> vector;
};

/// A rank's tensor. Keeps its address while a Shard has it.
struct RankTensor {
  TensorSpec spec;
  Bytes initial;  ///< what a rebound tensor points at ahead of materialize
  Forms<float> f32;
  Forms<tessera::bf16> bf16;
  Forms<std::int64_t> i64;
  Forms<unsigned char> u8;
  Forms<Block16> block16;

  /// Calls fn(Forms<E>&) with the forms of the tensor's element type.
  template <class Fn>
  decltype(auto) visit(Fn&& fn) {
    switch (spec.type) {
      case Type::f32: return fn(f32);
      case Type::bf16: return fn(bf16);
      case Type::i64: return fn(i64);
      case Type::u8: return fn(u8);
      case Type::block16: break;
    }
    return fn(block16);
  }

  const void* data() {
    return visit([&](auto& forms) -> const void* {
      switch (spec.form) {
        case Form::pointer: return forms.pointer;
        case Form::span: return forms.span.data();
        case Form::vector: break;
      }
      return forms.vector.data();
    });
  }
};

/// `filled`: the tensor holds its first values; else rebound ones hold nothing.
inline void set_up(const Case& c, RankTensor& tensor, const TensorSpec& spec, bool filled) {
  tensor.spec = spec;
  tensor.initial = spec.is_float() ? to_bytes(initial_floats(c, spec), element_of(spec.type))
                                   : initial_bytes(c, spec);
  tensor.visit([&]<class E>(Forms<E>& forms) {
    auto* const values = reinterpret_cast<E*>(tensor.initial.data());
    const auto n = static_cast<std::size_t>(spec.elements());
    switch (spec.form) {
      case Form::pointer: forms.pointer = filled ? values : nullptr; break;
      case Form::span: forms.span = std::span<E>(filled ? values : nullptr, n); break;
      case Form::vector:
        forms.vector.resize(n);
        if (filled) std::copy(values, values + n, forms.vector.begin());
        break;
    }
  });
}

/// The tensors of one unit, as one argument of add_unit.
struct TensorList {
  std::vector<RankTensor*> tensors;
};

template <class Sink, class T>
void add_tensor(Sink&& sink, const TensorSpec& spec, T&& tensor) {
  if (spec.trainable) {
    if constexpr (tessera::is_trainable(tessera::ElementTraits<tessera::element_of<T>>::dtype)) {
      auto in_group = tessera::in_group(tensor, spec.group);
      if (spec.decay) {
        tessera::for_each_tensor(sink, in_group);
      } else {
        tessera::for_each_tensor(sink, tessera::no_decay(in_group));
      }
    }
  } else {
    tessera::for_each_tensor(sink, tessera::frozen(tensor));
  }
}

/// add_unit's arguments are a list that the compiler knows, and a case's are not: this overload,
/// found where add_unit calls for_each_tensor, takes them one by one.
template <class Sink>
void for_each_tensor(Sink&& sink, TensorList& list) {
  for (RankTensor* tensor : list.tensors) {
    tensor->visit([&](auto& forms) {
      const TensorSpec& spec = tensor->spec;
      switch (spec.form) {
        case Form::pointer: {
          const tessera::Shape shape{std::span<const std::int64_t>(spec.shape)};
          add_tensor(sink, spec, tessera::tensor(forms.pointer, shape));
          break;
        }
        case Form::span: add_tensor(sink, spec, forms.span); break;
        case Form::vector: add_tensor(sink, spec, forms.vector); break;
      }
    });
  }
}

}  // namespace property
