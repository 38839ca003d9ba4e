// The layout of what the peers send of a reduce-scatter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/comm/communicator.hpp"

namespace tessera::detail {

/// Where the peers' parts of a reduce-scatter's segments lie in the scratch: one segment after the
/// other, and in each, the peers in rank order without this one. Parts start at multiples of 16
/// bytes; where pieces are multiples of 64 elements that costs nothing.
class ReduceScratch {
 public:
  /// `exchanges`: whether anything is sent. A rank by itself that is made to sends to itself.
  ReduceScratch(std::byte* base, int rank, int size, bool exchanges)
      : base_(base),
        rank_(rank),
        holds_own_(size == 1 && exchanges && base != nullptr),
        parts_(holds_own_ ? 1 : size - 1) {}

  /// Whether this rank's own part comes here too.
  bool holds_own() const { return holds_own_; }
  /// The part that `peer` sends.
  std::byte* part(const ReduceSegment& segment, int peer) const {
    const int index = peer < rank_ || holds_own_ ? peer : peer - 1;
    return base_ + used_ + part_bytes(segment) * static_cast<std::uint64_t>(index);
  }
  /// On to the next segment.
  void pass(const ReduceSegment& segment) {
    used_ += part_bytes(segment) * static_cast<std::uint64_t>(parts_);
  }
  void rewind() { used_ = 0; }
  /// Bytes of the segments passed.
  std::uint64_t used() const { return used_; }

 private:
  static std::uint64_t part_bytes(const ReduceSegment& segment) {
    return (segment.elements * size_of(segment.dtype) + 15) / 16 * 16;
  }

  std::byte* base_;
  int rank_;
  bool holds_own_;
  int parts_;
  std::uint64_t used_ = 0;
};

}  // namespace tessera::detail
