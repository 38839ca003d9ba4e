// Offsets for buffers whose lifetimes are known: the slot arena's layout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera::engine {

/// A buffer that is alive in the times [birth, death).
struct Lifetime {
  std::uint64_t bytes = 0;
  std::uint64_t birth = 0;
  std::uint64_t death = 0;
  std::uint64_t offset = 0;  ///< the result
  bool lowest = false;       ///< placed ahead of the others, at the arena's beginning
};

/// Chooses offsets so that buffers alive at the same time do not overlap, and returns the bytes of
/// the arena. Largest first, each at the lowest offset that is free over its whole life (the
/// greedy-by-size planner of Pisarchyk and Lee 2020): with knowledge of what comes, a large unit
/// among small ones does not need a second large slot.
inline std::uint64_t place(std::vector<Lifetime>& buffers) {
  std::vector<std::size_t> order(buffers.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (buffers[a].lowest != buffers[b].lowest) return buffers[a].lowest;
    if (buffers[a].bytes != buffers[b].bytes) return buffers[a].bytes > buffers[b].bytes;
    if (buffers[a].birth != buffers[b].birth) return buffers[a].birth < buffers[b].birth;
    return a < b;
  });
  std::vector<const Lifetime*> placed;  // by offset
  placed.reserve(buffers.size());
  std::uint64_t arena = 0;
  for (std::size_t i : order) {
    Lifetime& buffer = buffers[i];
    std::uint64_t offset = 0;
    for (const Lifetime* other : placed) {
      if (other->birth >= buffer.death || buffer.birth >= other->death) continue;
      if (offset + buffer.bytes <= other->offset) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    buffer.offset = offset;
    arena = std::max(arena, offset + buffer.bytes);
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), &buffer,
        [](const Lifetime* a, const Lifetime* b) { return a->offset < b->offset; });
    placed.insert(at, &buffer);
  }
  return arena;
}

/// The most bytes alive at any one time.
inline std::uint64_t most_alive(const std::vector<Lifetime>& buffers) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> changes;
  changes.reserve(buffers.size() * 2);
  for (const Lifetime& buffer : buffers) {
    changes.push_back({buffer.birth, static_cast<std::int64_t>(buffer.bytes)});
    changes.push_back({buffer.death, -static_cast<std::int64_t>(buffer.bytes)});
  }
  std::sort(changes.begin(), changes.end());  // at one time, deaths first
  std::int64_t alive = 0;
  std::int64_t most = 0;
  for (const auto& change : changes) most = std::max(most, alive += change.second);
  return static_cast<std::uint64_t>(most);
}

}  // namespace tessera::engine
