#pragma once

#include <cstdint>

#include "tessera/exact/bf16.hpp"
#include "tessera/exact/cell_tree.hpp"
#include "tessera/exact/double_lanes.hpp"

namespace tessera {

/// Elements of a cell, the leaf of every scalar reduction: consecutive in a tensor, the first one
/// at a multiple of this.
inline constexpr std::uint64_t kCell = 64;

/// The cells that hold `elements` elements; the last one may be partial.
TESSERA_HD constexpr std::uint64_t cells_of(std::uint64_t elements) noexcept {
  return elements / kCell + (elements % kCell != 0 ? 1 : 0);
}

namespace detail {
inline namespace TESSERA_ISA {

/// Folds a whole cell, in the order that every instruction set and backend shares: eight partial
/// sums, of the elements i mod 8 each in ascending order, then p[j] + p[j + 4], + [j + 2],
/// + [j + 1]. The square of a float is exact in double. D is DoubleLanes of width 1, 2, 4 or 8.
TESSERA_EXEC_CHECK_DISABLE
template <bool squares, class D>
TESSERA_HD double sum_cell(const float* x) {
  constexpr int kVectors = 8 / D::width;
  D partial[kVectors];
  for (int i = 0; i != static_cast<int>(kCell); i += 8) {
    TESSERA_UNROLL
    for (int v = 0; v != kVectors; ++v) {
      const D value = D::load(x + i + v * D::width);
      const D term = squares ? value * value : abs(value);
      partial[v] = i == 0 ? term : partial[v] + term;
    }
  }
  double sums[8];
  TESSERA_UNROLL
  for (int v = 0; v != kVectors; ++v) partial[v].store(sums + v * D::width);
  const auto pair = [&sums](int j, int k) {
    return DoubleLanes<1>{sums[j]} + DoubleLanes<1>{sums[k]};
  };
  return ((pair(0, 4) + pair(2, 6)) + (pair(1, 5) + pair(3, 7))).x;
}

/// The largest magnitude of a whole cell; NaN if there is one. Exact in any order.
TESSERA_HD inline double max_cell(const float* x) {
  std::uint32_t largest = 0;  // magnitudes are ordered as their bits are, NaN above infinity
  for (int i = 0; i != static_cast<int>(kCell); ++i) {
    const std::uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float value = __builtin_bit_cast(float, largest);
  return DoubleLanes<1>::load(&value).x;
}

/// `x` points at kCell elements.
TESSERA_EXEC_CHECK_DISABLE
template <class D>
TESSERA_HD double whole_cell(NormKind kind, const float* x) {
  return kind == NormKind::l2   ? sum_cell<true, D>(x)
         : kind == NormKind::l1 ? sum_cell<false, D>(x)
                                : max_cell(x);
}

// noinline: see elementwise_blocks.
[[gnu::noinline]] inline double native_cell(NormKind kind, const float* x, std::uint64_t count) {
  using D = DoubleLanes<kNativeDoubleLanes>;
  if (count >= kCell) return whole_cell<D>(kind, x);
  float padded[kCell] = {};
  for (std::uint64_t i = 0; i != count; ++i) padded[i] = x[i];
  return whole_cell<D>(kind, padded);
}
/// The same of values that are widened first, which is exact.
[[gnu::noinline]] inline double native_cell(NormKind kind, const bf16* x, std::uint64_t count) {
  float wide[kCell] = {};
  for (std::uint64_t i = 0; i != (count < kCell ? count : kCell); ++i) wide[i] = to_float(x[i]);
  return whole_cell<DoubleLanes<kNativeDoubleLanes>>(kind, wide);
}

}  // namespace TESSERA_ISA
}  // namespace detail

inline namespace TESSERA_ISA {

/// The value of one cell of `count` <= kCell elements; missing ones count as +0.
inline double cell_value(NormKind kind, const float* x, std::uint64_t count) {
  const StrictRounding strict;
  return detail::pin(detail::with_one_nan(detail::native_cell(kind, x, count)));
}

/// Folds the cells that a rank holds to the values of `for_each_node(first_cell, first_cell +
/// cells_of(elements))`, in that order: `out` has room for `node_count` of the same range. `data`
/// points at element first_cell * kCell of the tensor, of which the rank holds `elements`: a
/// multiple of kCell, except where they are the tensor's last. T is float or bf16.
template <class T>
void node_values(NormKind kind, const T* data, std::uint64_t first_cell, std::uint64_t elements,
                 double* out) {
  const StrictRounding strict;
  const T* const end = data + elements;
  for_each_node(first_cell, first_cell + cells_of(elements), [&](const TreeNode& node) {
    detail::NodeStack stack(kind);
    for (std::uint64_t cell = 0; cell != node.cells(); ++cell) {
      const auto left = static_cast<std::uint64_t>(end - data);
      const std::uint64_t count = left < kCell ? left : kCell;
      stack.push({{cell, 0}, detail::native_cell(kind, data, count)});
      data += count;
    }
    *out++ = detail::with_one_nan(stack.fold_all());
  });
}

}  // namespace TESSERA_ISA
}  // namespace tessera
