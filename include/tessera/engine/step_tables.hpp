// The tables of a step: which ranges of which arrays its kernels work on. Made once, by
// materialize.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/backend/ranges.hpp"

namespace tessera::engine {

/// The ranges of one group of a unit that the optimizer updates.
struct GroupRanges {
  std::uint32_t group = 0;
  std::uint32_t first = 0;  ///< in StepTables::update_ranges
  std::uint32_t count = 0;
};

/// Copies of what lies in the backend's memory, in the same order.
struct StepTables {
  /// Those of the last unit first: the order in which backward reduces them.
  std::vector<NormRange> norm_ranges;
  std::vector<std::uint32_t> norm_units;  ///< of which unit each is
  std::vector<ElementRange> update_ranges;
  std::vector<std::vector<GroupRanges>> groups;  ///< by unit
};

}  // namespace tessera::engine
