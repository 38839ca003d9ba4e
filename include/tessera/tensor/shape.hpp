#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include <tessera/error.hpp>

namespace tessera {

/// The most dimensions a tensor may have.
inline constexpr int kMaxRank = 8;

namespace detail {

/// What can be written as an extent: an integer of any width, or an unscoped enumerator (C
/// trainers keep their sizes in such), but not a bool.
template <class I>
concept Extent = (std::is_integral_v<I> || std::is_enum_v<I>)&&!std::is_same_v<I, bool> &&
                 std::is_convertible_v<I, std::int64_t>;

/// `value` as a 64-bit number; what lies above becomes -1, which Shape refuses.
template <Extent I>
constexpr std::int64_t to_extent(I value) noexcept {
  if constexpr (std::is_integral_v<I>) {
    using Limits = std::numeric_limits<std::int64_t>;
    if (value > I(0) && static_cast<std::uint64_t>(value) > std::uint64_t{Limits::max()}) return -1;
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace detail

/// The extents of a tensor: up to 8 of them, each zero or more. A regular value without
/// allocation. A shape of no extents is one element; a zero extent makes no elements. A negative
/// extent, more than 8 extents, or a number of elements above 64 bits is an Error, or, in a
/// constant expression, does not compile.
class Shape {
 public:
  /// One element.
  constexpr Shape() noexcept = default;

  /// `Shape{rows, columns}`. Integers of different types may be mixed.
  template <detail::Extent... I>
    requires(sizeof...(I) > 0)
  constexpr Shape(I... extents) {
    static_assert(sizeof...(I) <= std::size_t{kMaxRank}, "tessera: a Shape has at most 8 extents");
    const std::int64_t values[] = {detail::to_extent(extents)...};
    assign(std::span<const std::int64_t>(values));
  }

  /// The extents of `extents`, in order.
  constexpr explicit Shape(std::span<const std::int64_t> extents) { assign(extents); }

  /// The number of dimensions.
  constexpr int rank() const noexcept { return rank_; }

  /// Extent `i`, 0 <= i < rank(); Error elsewhere.
  constexpr std::int64_t extent(int i) const {
    if (i < 0 || i >= rank_) {
      detail::fail("tessera: extent ", i, " of a shape of ", rank_, " dimensions does not exist");
    }
    return extents_[i];
  }

  /// All extents. The span points into this shape.
  constexpr std::span<const std::int64_t> extents() const& noexcept {
    return {extents_, static_cast<std::size_t>(rank_)};
  }
  void extents() const&& = delete;

  /// The number of elements.
  constexpr std::int64_t size() const noexcept { return size_; }

  friend constexpr bool operator==(const Shape&, const Shape&) noexcept = default;

 private:
  constexpr void assign(std::span<const std::int64_t> extents) {
    if (extents.size() > std::size_t{kMaxRank}) {
      detail::fail("tessera: a shape of ", extents.size(), " dimensions was asked for, at most ",
                   kMaxRank, " are possible: merge neighbouring dimensions");
    }
    bool empty = false;
    for (const std::int64_t extent : extents) {
      if (extent < 0) {
        detail::fail("tessera: a shape has the extent ", extent, " in dimension ", rank_,
                     ": extents are 0 to 2^63 - 1");
      }
      empty = empty || extent == 0;
      extents_[rank_++] = extent;
    }
    if (empty) {
      size_ = 0;
      return;
    }
    for (const std::int64_t extent : extents) {
      if (size_ > std::numeric_limits<std::int64_t>::max() / extent) {
        detail::fail("tessera: a shape has 2^63 elements or more: ", text());
      }
      size_ *= extent;
    }
  }

  std::string text() const {
    std::string text = "[";
    for (int i = 0; i < rank_; ++i) {
      if (i > 0) text += ", ";
      text += std::to_string(extents_[i]);
    }
    return text += "]";
  }

  friend std::string to_string(const Shape& shape);

  std::int64_t size_ = 1;
  std::int64_t extents_[kMaxRank] = {};  // zero beyond rank_, so that == may compare all of them
  int rank_ = 0;
};

/// `[4, 1024]`; `[]` for one element.
inline std::string to_string(const Shape& shape) { return shape.text(); }

}  // namespace tessera
