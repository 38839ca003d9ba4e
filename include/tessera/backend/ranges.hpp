// Tables of ranges that lie in a backend's memory, so that one launch serves many tensors.
#pragma once

#include <cstdint>

#include "tessera/exact/arguments.hpp"
#include "tessera/exact/config.hpp"
#include "tessera/tensor/dtype.hpp"

namespace tessera {

/// Elements [begin, begin + count) of arrays that share a layout; `begin` is a multiple of 64.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  std::uint32_t setting = 0;        ///< which of a function's settings applies to them
  std::uint32_t first_block = 0;    ///< blocks of kRangeBlock elements in the ranges before it
  std::uint64_t first_element = 0;  ///< the place of the one at `begin` in its tensor
  std::uint32_t tensor = 0;
};

/// The key of the roundings of a range's elements, which are counted from the arrays' beginning;
/// any, where no argument wants one. `f` is a function over ranges: see Runtime.
TESSERA_EXEC_CHECK_DISABLE
template <class... Refs, class F>
TESSERA_HD RoundingKey rounding_key_of(const F& f, const ElementRange& range) {
  if constexpr ((... || detail::kRoundsAtRandom<Refs>)) {
    return f.rounding_key(range.tensor).from(range.first_element - range.begin);
  } else {
    return {};
  }
}

/// Elements of a range that are worked on together on devices.
inline constexpr std::uint64_t kRangeBlock = 4096;

TESSERA_HD constexpr std::uint32_t range_blocks(std::uint64_t elements) {
  return static_cast<std::uint32_t>((elements + kRangeBlock - 1) / kRangeBlock);
}

/// What a rank holds of one tensor, to be folded into the nodes of its tree (exact/cell_sum.hpp):
/// `elements` at `data`, from cell `first_cell` on, into `nodes`.
///
/// A backend that folds in two passes cuts the tensor's cells into windows of
/// Runtime::norm_window cells, by their global index: `partials` has a double for each window the
/// range touches, and `first_window` counts those of the ranges before it.
struct NormRange {
  const void* data = nullptr;  ///< of type `dtype`
  std::uint64_t first_cell = 0;
  std::uint64_t elements = 0;
  double* nodes = nullptr;
  double* partials = nullptr;
  std::uint64_t first_window = 0;
  DType dtype = DType::f32;  ///< f32 or bf16
};

/// Windows of `window` cells that the cells [begin, end) touch.
TESSERA_HD constexpr std::uint64_t windows_of(std::uint64_t begin, std::uint64_t end,
                                              std::uint64_t window) {
  return begin >= end || window == 0 ? 0 : (end - 1) / window - begin / window + 1;
}

}  // namespace tessera
