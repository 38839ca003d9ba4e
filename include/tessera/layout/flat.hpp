// Units -> flat parameters -> pieces. Pure arithmetic: no allocation, usable in constant
// expressions.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/exact/config.hpp"
#include "tessera/tensor/dtype.hpp"

namespace tessera::layout {

/// Elements; every tensor starts and every piece ends at a multiple of it. It equals the cell of
/// the fixed-tree reductions (exact/cell_sum.hpp), so a cell never straddles two pieces, and it
/// keeps 16-byte accesses aligned for every element type.
inline constexpr std::uint64_t kGranule = 64;

TESSERA_HD constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// What the layout needs to know of one tensor.
struct TensorExtent {
  std::uint64_t elements = 0;
  DType dtype = DType::f32;
  bool trainable = true;
};

/// Where a tensor lies: its group, and its first element in that group's flat parameter.
struct TensorPlacement {
  std::uint32_t group = 0;
  std::uint64_t offset = 0;
};

/// A half-open range of elements.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  TESSERA_HD constexpr std::uint64_t size() const { return end - begin; }
  TESSERA_HD constexpr bool empty() const { return begin == end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// One flat parameter: the tensors of a unit with this element type that are all trainable or all
/// frozen. Rank r's piece is the elements [r * piece_elements, (r + 1) * piece_elements).
struct GroupLayout {
  DType dtype = DType::f32;
  bool trainable = true;
  std::uint64_t used_elements = 0;   ///< before the padding of the last pieces
  std::uint64_t piece_elements = 0;  ///< the same on every rank; a multiple of kGranule

  constexpr std::uint64_t piece_bytes() const { return piece_elements * size_of(dtype); }
  constexpr std::uint64_t full_elements(int world) const {
    return piece_elements * static_cast<std::uint64_t>(world);
  }
  constexpr std::uint64_t full_bytes(int world) const {
    return full_elements(world) * size_of(dtype);
  }
};

/// The most (element type, trainable or frozen) pairs a unit can mix: there are no more.
inline constexpr std::uint32_t kMaxGroups = 34;

/// The layout of one unit. A full buffer holds the groups' flat parameters one after the other, a
/// piece buffer their pieces; byte offsets of a group in either are full_offset and piece_offset.
struct UnitLayout {
  GroupLayout groups[kMaxGroups]{};
  std::uint32_t group_count = 0;
  int world = 1;

  constexpr std::span<const GroupLayout> used() const { return {groups, group_count}; }

  constexpr std::uint64_t piece_bytes() const { return piece_offset(group_count); }
  constexpr std::uint64_t full_bytes() const { return full_offset(group_count); }

  constexpr std::uint64_t piece_offset(std::uint32_t group) const {
    std::uint64_t bytes = 0;
    for (std::uint32_t g = 0; g < group; ++g) bytes += groups[g].piece_bytes();
    return bytes;
  }
  constexpr std::uint64_t full_offset(std::uint32_t group) const {
    return piece_offset(group) * static_cast<std::uint64_t>(world);
  }

  /// Elements of one rank's share of all trainable groups: the length of its master weights, of
  /// each of its moments and of its reduced gradients.
  constexpr std::uint64_t trainable_piece_elements() const { return state_offset(group_count); }

  /// Elements ahead of `group` in the arrays of trainable_piece_elements.
  constexpr std::uint64_t state_offset(std::uint32_t group) const {
    std::uint64_t elements = 0;
    for (std::uint32_t g = 0; g < group; ++g) {
      if (groups[g].trainable) elements += groups[g].piece_elements;
    }
    return elements;
  }
};

/// Lays out one unit over `world` ranks. Tensors keep their order within a group; groups come in
/// the order of their first tensor. `placements` receives one entry a tensor and must be as long
/// as `tensors`; `world` must be at least 1. A zero-size tensor takes no room. Pieces are multiples
/// of `replicas` granules, so that replicas can share the work on one.
constexpr UnitLayout lay_out(std::span<const TensorExtent> tensors, int world,
                             std::span<TensorPlacement> placements, int replicas = 1) {
  UnitLayout unit;
  unit.world = world;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorExtent& tensor = tensors[i];
    std::uint32_t g = 0;
    while (g < unit.group_count && !(unit.groups[g].dtype == tensor.dtype &&
                                     unit.groups[g].trainable == tensor.trainable)) {
      ++g;
    }
    if (g == unit.group_count) {
      unit.groups[g].dtype = tensor.dtype;
      unit.groups[g].trainable = tensor.trainable;
      ++unit.group_count;
    }
    placements[i] = {g, unit.groups[g].used_elements};
    unit.groups[g].used_elements += round_up(tensor.elements, kGranule);
  }
  const auto ranks = static_cast<std::uint64_t>(world);
  for (std::uint32_t g = 0; g < unit.group_count; ++g) {
    unit.groups[g].piece_elements = round_up((unit.groups[g].used_elements + ranks - 1) / ranks,
                                             kGranule * static_cast<std::uint64_t>(replicas));
  }
  return unit;
}

/// The elements of a tensor (counted from its own first one) that lie in `rank`'s piece, of a
/// tensor of `elements` that begins at `offset` of a flat parameter cut into pieces of
/// `piece_elements`. Begins at a multiple of kGranule; empty where the rank holds nothing of it.
TESSERA_HD constexpr Range owned(std::uint64_t piece_elements, std::uint64_t offset,
                                 std::uint64_t elements, int rank) {
  const std::uint64_t piece_begin = piece_elements * static_cast<std::uint64_t>(rank);
  const std::uint64_t piece_end = piece_begin + piece_elements;
  const std::uint64_t begin = offset > piece_begin ? offset : piece_begin;
  const std::uint64_t tensor_end = offset + elements;
  const std::uint64_t end = tensor_end < piece_end ? tensor_end : piece_end;
  if (begin >= end) return {};
  return {begin - offset, end - offset};
}
constexpr Range owned(const GroupLayout& group, const TensorPlacement& placement,
                      std::uint64_t elements, int rank) {
  return owned(group.piece_elements, placement.offset, elements, rank);
}

}  // namespace tessera::layout
