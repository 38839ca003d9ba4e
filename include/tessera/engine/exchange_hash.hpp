// Hashes of ranks, brought together.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/staging.hpp"

namespace tessera::engine {

/// A number of each rank of a group of `ranks`, in rank order. Collective; waits for it.
template <Backend Bk>
std::vector<std::uint64_t> exchange_hash(Context<Bk>& c, typename Bk::Communicator& among,
                                         int ranks, std::uint64_t own) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks), own);
  if (ranks == 1) return all;
  // Apart from each other, as some devices' copies like their addresses.
  constexpr std::uint64_t kApart = 64;
  const Staging<typename Bk::Runtime> staging(c.backend,
                                              kApart * (static_cast<std::uint64_t>(ranks) + 1));
  c.backend.fill(c.compute(), staging.data(), 0, kApart);
  c.backend.write(c.compute(), staging.data(), &own, sizeof own);
  c.await(c.compute());
  const GatherSegment segment{staging.data(), staging.data() + kApart, kApart, kApart};
  among.all_gather(c.reducing(), {CollectiveKind::scalars, "a hash"}, {&segment, 1});
  c.await(c.reducing());
  c.check();
  for (std::size_t r = 0; r < all.size(); ++r) {
    c.backend.read(c.compute(), &all[r], staging.data() + kApart * (r + 1), sizeof all[r]);
  }
  return all;
}

}  // namespace tessera::engine
