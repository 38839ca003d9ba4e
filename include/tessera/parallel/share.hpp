// How much of something each rank of a group has: heads, columns, a vocabulary, rows.
#pragma once

#include <cstdint>

namespace tessera {

/// [begin, end()) of a whole.
struct Share {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;

  constexpr std::uint64_t end() const { return begin + size; }
  constexpr bool has(std::uint64_t index) const { return index >= begin && index - begin < size; }
  friend constexpr bool operator==(const Share&, const Share&) = default;
};

/// Rank `rank`'s share of `whole` over `ranks` >= 1 ranks: contiguous, in rank order, and where it
/// cannot be even, one larger on the first ranks. A share does not shrink as the whole grows.
constexpr Share share_of(std::uint64_t whole, int ranks, int rank) {
  const auto of = static_cast<std::uint64_t>(ranks);
  const auto at = static_cast<std::uint64_t>(rank);
  const std::uint64_t least = whole / of;
  const std::uint64_t larger = whole % of;  // ranks that have one more
  return {at * least + (at < larger ? at : larger), least + (at < larger ? 1 : 0)};
}

/// The first rank's, which is the largest.
constexpr std::uint64_t largest_share(std::uint64_t whole, int ranks) {
  return share_of(whole, ranks, 0).size;
}

}  // namespace tessera
