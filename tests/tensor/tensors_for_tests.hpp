#pragma once

// Tensor types that the tests of tensor/ share.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <tessera/tensor/adapters.hpp>

namespace tensors {

/// A bf16 of a user's own.
struct UserBf16 {
  std::uint16_t bits;
};

/// What a trainer writes for itself: a pointer and two extents.
struct Matrix {
  float* values = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// As much like std::mdspan as tessera asks for. Strides count elements.

template <std::size_t kRank>
struct MiniExtents {
  using index_type = int;
  std::array<int, kRank> values{};
  static constexpr std::size_t rank() noexcept { return kRank; }
  constexpr int extent(std::size_t i) const noexcept { return values[i]; }
};

template <std::size_t kRank>
struct MiniMapping {
  MiniExtents<kRank> extents;
  std::array<int, kRank> strides{};

  /// Row-major, rows `pitch` elements longer than they need to be.
  static MiniMapping right(std::array<int, kRank> values, int pitch = 0) {
    MiniMapping mapping{{values}, {}};
    int stride = 1;
    for (std::size_t i = kRank; i-- > 0;) {
      mapping.strides[i] = stride;
      stride = stride * values[i] + (i + 1 == kRank ? pitch : 0);
    }
    return mapping;
  }
  bool exhaustive() const noexcept {
    int size = 1;
    int last = 1;
    for (std::size_t i = 0; i < kRank; ++i) {
      size *= extents.values[i];
      last += (extents.values[i] - 1) * strides[i];
    }
    return size == 0 || size == last;
  }
  bool unique() const noexcept {
    for (std::size_t i = 0; i < kRank; ++i) {
      if (strides[i] == 0 && extents.values[i] > 1) return false;
    }
    return true;
  }
};

template <class E, std::size_t kRank>
class MiniMdspan {
 public:
  using element_type = E;
  MiniMdspan(E* data, const MiniMapping<kRank>& mapping) : data_(data), mapping_(mapping) {}

  const MiniExtents<kRank>& extents() const noexcept { return mapping_.extents; }
  int extent(std::size_t i) const noexcept { return mapping_.extents.extent(i); }
  E* data_handle() const noexcept { return data_; }
  const MiniMapping<kRank>& mapping() const noexcept { return mapping_; }
  bool is_exhaustive() const noexcept { return mapping_.exhaustive(); }
  bool is_unique() const noexcept { return mapping_.unique(); }

 private:
  E* data_;
  MiniMapping<kRank> mapping_;
};

/// With an accessor that has no default constructor: only a rebind that passes it on can serve it.
struct Accessor {
  explicit Accessor(int value) : tag(value) {}
  int tag;
};

template <class E, std::size_t kRank>
class AccessorMdspan : public MiniMdspan<E, kRank> {
 public:
  AccessorMdspan(E* data, const MiniMapping<kRank>& mapping, const Accessor& accessor)
      : MiniMdspan<E, kRank>(data, mapping), accessor_(accessor) {}
  const Accessor& accessor() const noexcept { return accessor_; }

 private:
  Accessor accessor_;
};

/// A view that cannot be assigned, and so is copied into.
template <class E>
struct FixedView : MiniMdspan<E, 2> {
  using MiniMdspan<E, 2>::MiniMdspan;
  FixedView(const FixedView&) = default;
  FixedView& operator=(const FixedView&) = delete;
};

/// Its element type is known at run time only.
struct Dynamic {
  tessera::DType dtype = tessera::DType::f32;
  void* memory = nullptr;
  std::int64_t size = 0;
};

}  // namespace tensors

template <>
struct tessera::ElementTraits<tensors::UserBf16> {
  static constexpr DType dtype = DType::bf16;
};

template <>
struct tessera::TensorTraits<tensors::Matrix> {
  using element = float;
  static Shape shape(const tensors::Matrix& m) { return Shape{m.rows, m.columns}; }
  static float* data(tensors::Matrix& m) { return m.values; }
  static void rebind(tensors::Matrix& m, float* values) { m.values = values; }
};

template <>
struct tessera::TensorTraits<tensors::Dynamic> {
  using element = void;
  static Shape shape(const tensors::Dynamic& t) { return Shape{t.size}; }
  static DType dtype(const tensors::Dynamic& t) { return t.dtype; }
  static void* data(tensors::Dynamic& t) { return t.memory; }
  static void rebind(tensors::Dynamic& t, void* memory) { t.memory = memory; }
};
