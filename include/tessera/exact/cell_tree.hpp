#pragma once

#include <cstdint>
#include <span>

#include "tessera/error.hpp"
#include "tessera/exact/classify.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera {

/// What a cell is folded by: sum of squares, sum of absolute values, largest absolute value. (The
/// square root of `l2` is the caller's, after the last fold.)
enum class NormKind : std::uint8_t { l2, l1, inf };

/// A complete subtree: the cells [first_cell, first_cell + 2^level); first_cell is a multiple of
/// 2^level.
struct TreeNode {
  std::uint64_t first_cell = 0;
  std::uint32_t level = 0;

  TESSERA_HD constexpr std::uint64_t cells() const noexcept { return std::uint64_t{1} << level; }
  TESSERA_HD constexpr std::uint64_t end_cell() const noexcept { return first_cell + cells(); }
  friend constexpr bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// A node and what its cells fold to. It is what ranks exchange.
struct NodeValue {
  TreeNode node;
  double value = 0;
};

namespace detail {

/// The largest l with 2^l <= x; x is not 0.
TESSERA_HD constexpr std::uint32_t floor_log2(std::uint64_t x) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(63 - __clzll(static_cast<long long>(x)));
#else
  return static_cast<std::uint32_t>(63 - __builtin_clzll(x));
#endif
}
/// The largest l with 2^l dividing x; x is not 0.
TESSERA_HD constexpr std::uint32_t trailing_zeros(std::uint64_t x) {
  return floor_log2(x & (~x + 1));
}

}  // namespace detail

/// Calls `fn(TreeNode)` for the largest complete subtrees that make up the cells [a, b), ascending:
/// at most two per level.
TESSERA_EXEC_CHECK_DISABLE
template <class Fn>
TESSERA_HD constexpr void for_each_node(std::uint64_t a, std::uint64_t b, Fn&& fn) {
  while (a < b) {
    const std::uint32_t fits = detail::floor_log2(b - a);
    const std::uint32_t aligned = a == 0 ? 63u : detail::trailing_zeros(a);
    const TreeNode node{a, fits < aligned ? fits : aligned};
    fn(node);
    a = node.end_cell();
  }
}

/// How many nodes `for_each_node(a, b)` visits.
TESSERA_HD constexpr int node_count(std::uint64_t a, std::uint64_t b) {
  int count = 0;
  for_each_node(a, b, [&count](const TreeNode&) { ++count; });
  return count;
}

namespace detail {

/// What two neighbours fold to, left one first. NaN and infinity win in every kind. The host is in
/// StrictRounding, its caller's.
TESSERA_HD inline double fold_pair(NormKind kind, double left, double right) noexcept {
  if (kind != NormKind::inf) return (StrictDouble{left} + StrictDouble{right}).x;
  // Magnitudes, so that the bits are ordered as the values are, with NaN above infinity.
  const std::uint64_t a = bits_of(left) & 0x7fffffffffffffffu;
  const std::uint64_t b = bits_of(right) & 0x7fffffffffffffffu;
  return __builtin_bit_cast(double, a > b ? a : b);
}

/// Folds nodes that arrive in ascending order from cell 0 without gaps, as soon as both children of
/// a node are there.
class NodeStack {
 public:
  TESSERA_HD explicit NodeStack(NormKind kind) : kind_(kind) {}

  TESSERA_HD void push(NodeValue next) {
    while (size_ != 0 && are_siblings(nodes_[size_ - 1].node, next.node)) {
      const NodeValue& left = nodes_[--size_];
      next = {{left.node.first_cell, left.node.level + 1},
              fold_pair(kind_, left.value, next.value)};
    }
    nodes_[size_++] = next;
  }

  /// The value of the whole tree over what was pushed: a node without a right sibling is its own
  /// parent's value, so the rightmost ones rise until they meet a left sibling.
  TESSERA_HD double fold_all() {
    if (size_ == 0) return 0;
    double value = nodes_[--size_].value;
    while (size_ != 0) value = fold_pair(kind_, nodes_[--size_].value, value);
    return value;
  }

 private:
  static TESSERA_HD bool are_siblings(const TreeNode& left, const TreeNode& right) {
    return left.level == right.level && (left.first_cell >> left.level) % 2 == 0;
  }

  // From cell 0 without gaps, the levels on the stack strictly fall.
  static constexpr int kMaxNodes = 65;
  NodeValue nodes_[kMaxNodes];
  int size_ = 0;
  NormKind kind_;
};

}  // namespace detail

/// Evaluates the tree over a tensor's cells: leaves are cells, a parent folds its left and right
/// children in that order, and a missing right child leaves the left one's value. `nodes` are those
/// of all ranks, in ascending order; together they have to cover [0, cells_total) once, but how
/// they cut it up does not change the result, a function of the cells alone. 0 for no cells. A NaN
/// result is always the same quiet NaN. Throws Error if the nodes do not cover the cells.
inline double combine(NormKind kind, std::uint64_t cells_total, std::span<const NodeValue> nodes) {
  std::uint64_t expected = 0;
  for (const NodeValue& next : nodes) {
    if (next.node.first_cell != expected || next.node.level > 63 ||
        next.node.first_cell % next.node.cells() != 0 ||
        next.node.cells() > cells_total - expected) {
      detail::fail("combine: a node at cell ", next.node.first_cell, " of level ", next.node.level,
                   " where cell ", expected, " of ", cells_total, " is next");
    }
    expected = next.node.end_cell();
  }
  if (expected != cells_total) {
    detail::fail("combine: the nodes end at cell ", expected, " of ", cells_total);
  }
  const StrictRounding strict;
  detail::NodeStack stack(kind);
  for (const NodeValue& next : nodes) stack.push(next);
  return detail::pin(detail::with_one_nan(stack.fold_all()));
}

}  // namespace tessera
