#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include <tessera/tensor/pointer_tensor.hpp>
#include <tessera/tensor/slice.hpp>
#include <tessera/tensor/traits.hpp>

namespace tessera {

/// What add_unit is told about a tensor, beyond the tensor itself.
struct TensorOptions {
  std::string name;            ///< for messages and checkpoints; empty: the Shard makes one up
  bool trainable = true;       ///< false after frozen(...): gathered and saved, without gradient
  bool decay = true;           ///< false after no_decay(...): no weight decay
  int group = 0;               ///< the optimizer's parameter group, zero or more
  bool grouped = false;        ///< in_group(...) said so
  std::optional<Slice> slice;  ///< sliced(...) said so
};

namespace detail {

/// What the library can do with a tensor, without its type. One constant table per type.
struct TensorTable {
  DType (*dtype)(const void* tensor);
  Shape (*shape)(const void* tensor);
  void* (*data)(void* tensor);
  void (*rebind)(void* tensor, void* memory, const Shape& shape);  // null: copied into
  bool (*contiguous)(const void* tensor);
};

template <class T>
struct TableFunctions {
  using Traits = TensorTraits<T>;
  using Memory = TraitsElement<T>*;

  static T& tensor(void* address) noexcept { return *static_cast<T*>(address); }
  static const T& tensor(const void* address) noexcept { return *static_cast<const T*>(address); }

  static DType dtype(const void* address) {
    if constexpr (HasRuntimeDType<T>) {
      return Traits::dtype(tensor(address));
    } else {
      return ElementTraits<TraitsElement<T>>::dtype;
    }
  }
  static Shape shape(const void* address) { return Traits::shape(tensor(address)); }
  static void* data(void* address) { return static_cast<Memory>(Traits::data(tensor(address))); }
  static void rebind(void* address, void* memory, [[maybe_unused]] const Shape& shape) {
    if constexpr (HasShapedRebind<T>) {
      Traits::rebind(tensor(address), static_cast<Memory>(memory), shape);
    } else if constexpr (HasRebind<T>) {
      Traits::rebind(tensor(address), static_cast<Memory>(memory));
    }
  }
  static bool contiguous(const void* address) {
    if constexpr (HasContiguous<T>) {
      return Traits::contiguous(tensor(address));
    } else {
      return true;
    }
  }
};

/// A PointerTensor is a temporary, so its handle keeps the address of the user's pointer variable;
/// the shape is the handle's own.
template <class E>
struct TableFunctions<PointerTensor<E>> {
  static DType dtype(const void*) { return ElementTraits<E>::dtype; }
  static void* data(void* variable) { return *static_cast<E**>(variable); }
  static void rebind(void* variable, void* memory, const Shape&) {
    *static_cast<E**>(variable) = static_cast<E*>(memory);
  }
  static bool contiguous(const void*) { return true; }
};

template <class T>
inline constexpr TensorTable kTensorTable = {
    &TableFunctions<T>::dtype, &TableFunctions<T>::shape, &TableFunctions<T>::data,
    RebindableTensor<T> ? &TableFunctions<T>::rebind : nullptr, &TableFunctions<T>::contiguous};

template <class E>
inline constexpr TensorTable kTensorTable<PointerTensor<E>> = {
    &TableFunctions<PointerTensor<E>>::dtype, nullptr, &TableFunctions<PointerTensor<E>>::data,
    &TableFunctions<PointerTensor<E>>::rebind, &TableFunctions<PointerTensor<E>>::contiguous};

}  // namespace detail

/// A tensor of the user's, without its type: what the engine keeps. It refers to the tensor (for a
/// PointerTensor: to the pointer variable), which has to keep its address. A small value; the
/// shape and the dtype are those at the time it was made. Not synchronised: rebind and data are
/// for the thread that calls the Shard.
class TensorHandle {
 public:
  /// The handle of `tensor`. Error when its elements would not fit in 2^63 bytes.
  template <class T>
  static TensorHandle of(T& tensor) {
    static_assert(detail::check_tensor<T>());
    if constexpr (!ShardableTensor<T>) {
      __builtin_unreachable();  // said above
    } else if constexpr (detail::kIsPointerTensor<T>) {
      return TensorHandle(detail::kTensorTable<T>, &tensor.pointer(), &tensor.pointer(),
                          tensor.shape());
    } else {
      void* const address = detail::address_of(tensor);
      return TensorHandle(detail::kTensorTable<T>, address, identity_of_object(tensor, address),
                          TensorTraits<T>::shape(tensor));
    }
  }

  /// What "the same tensor" means for tying: what TensorTraits says, else the address of the tensor
  /// object, or of the pointer variable.
  const void* identity() const noexcept { return identity_; }
  DType dtype() const noexcept { return dtype_; }
  /// The shape at the time the handle was made.
  const Shape& shape() const noexcept { return shape_; }
  /// shape().size() elements in bytes.
  std::int64_t bytes() const noexcept {
    return shape_.size() * static_cast<std::int64_t>(size_of(dtype_));
  }

  /// True when the tensor can be pointed at other memory; else it is copied into.
  bool rebindable() const noexcept { return table_->rebind != nullptr; }
  /// Whether the elements lie in memory one after the other, now.
  bool contiguous() const { return table_->contiguous(tensor_); }
  /// Where the tensor's elements are now; may be null.
  void* data() const { return table_->data(tensor_); }
  /// The tensor's shape now, which differs from shape() only when the user resized it.
  Shape current_shape() const { return table_->shape == nullptr ? shape_ : table_->shape(tensor_); }

  /// Points the tensor at `memory`, null included. A tensor of no elements is always pointed at
  /// null, so that no kernel of the user's writes through it into its neighbour.
  /// Error when not rebindable().
  void rebind(void* memory) const {
    if (!rebindable()) {
      detail::fail("tessera: a tensor of shape ", shape_, " and type ", dtype_,
                   " cannot be pointed at other memory: its TensorTraits has no rebind");
    }
    table_->rebind(tensor_, shape_.size() == 0 ? nullptr : memory, shape_);
  }

  /// Error when the tensor no longer has the number of elements it was registered with. To be
  /// asked before elements are copied into or out of a tensor that is not rebindable.
  void require_same_size(const std::string& name) const {
    const Shape now = current_shape();
    if (now.size() != shape_.size()) {
      detail::fail("tessera: tensor '", name, "' was registered with shape ", shape_,
                   " and now has shape ", now, ": a tensor keeps its size until the Shard ends");
    }
  }

  /// True for the same tensor.
  friend bool operator==(const TensorHandle& a, const TensorHandle& b) noexcept {
    return a.identity_ == b.identity_;
  }

 private:
  template <class T>
  static const void* identity_of_object(const T& tensor, const void* address) {
    if constexpr (detail::HasIdentity<T>) {
      return TensorTraits<T>::identity(tensor);
    } else {
      return address;
    }
  }

  TensorHandle(const detail::TensorTable& table, void* tensor, const void* identity,
               const Shape& shape)
      : table_(&table),
        tensor_(tensor),
        identity_(identity),
        shape_(shape),
        dtype_(table.dtype(tensor)) {
    const auto width = static_cast<std::int64_t>(size_of(dtype_));
    if (shape_.size() > std::numeric_limits<std::int64_t>::max() / width) {
      detail::fail("tessera: a tensor of shape ", shape_, " and type ", dtype_,
                   " has 2^63 bytes or more");
    }
  }

  const detail::TensorTable* table_;
  void* tensor_;
  const void* identity_;
  Shape shape_;
  DType dtype_;
};

}  // namespace tessera
