// Collectives as copies between the memory of ranks on one host: copy engines move the bytes, and
// flags that streams write and wait for take the place of kernels that spin.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/cuda/error.hpp"
#include "tessera/nccl/exchange.hpp"
#include "tessera/nccl/group.hpp"
#include "tessera/nccl/peer_memory.hpp"
#include "tessera/nccl/state.hpp"

namespace tessera::detail {

/// One collective on a channel: every rank tells the others that they may write to it, pushes its
/// parts, and tells them that it has. A flag is raised again only after the one who waits for it
/// has taken it down, since `done` comes after `ready` on either side: so they need no counting,
/// and a graph may replay them.
class PeerCollective {
 public:
  PeerCollective(const StreamFlags& flags, const PeerRange& range, int channel, cudaStream_t stream)
      : flags_(flags), range_(range), channel_(channel), stream_(stream) {}

  /// The peers may write here, and from then on they may be written to.
  void begin() const {
    StreamFlags::Operations flags;
    announce(flags, PeerRange::Phase::ready);
    await(flags, PeerRange::Phase::ready);
    flags_.enqueue(stream_, flags);
  }
  /// What was pushed has arrived.
  void end_pushes() const {
    StreamFlags::Operations flags;
    announce(flags, PeerRange::Phase::done);
    flags_.enqueue(stream_, flags);
  }
  /// What the peers pushed is here.
  void end() const {
    StreamFlags::Operations flags;
    await(flags, PeerRange::Phase::done);
    flags_.enqueue(stream_, flags);
  }
  /// To the place of `peer` that corresponds to `place` here.
  void push(int peer, const void* place, const void* from, std::uint64_t bytes) const {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(range_.at(peer, place), from, bytes, cudaMemcpyDefault, stream_),
               "copying to a peer");
  }
  int size() const { return range_.size(); }
  int rank() const { return range_.rank(); }

 private:
  void announce(StreamFlags::Operations& flags, PeerRange::Phase phase) const {
    for (int step = 1; step < range_.size(); ++step) {
      const int to = (range_.rank() + step) % range_.size();
      flags.raise(range_.flag(to, channel_, phase, range_.rank()));
    }
  }
  void await(StreamFlags::Operations& flags, PeerRange::Phase phase) const {
    for (int step = 1; step < range_.size(); ++step) {
      const int from = (range_.rank() + range_.size() - step) % range_.size();
      flags.take(range_.flag(range_.rank(), channel_, phase, from));
    }
  }

  const StreamFlags& flags_;
  const PeerRange& range_;
  int channel_;
  cudaStream_t stream_;
};

/// The range that holds everything that the peers write in an all-gather; null where they cannot
/// write there. The same on all ranks, as their memory is laid out alike.
inline const PeerRange* peer_range(const NcclState& state,
                                   std::span<const GatherSegment> segments) {
  if (!state.peers || state.channel < 0 || state.size == 1) return nullptr;
  const PeerRange* range = nullptr;
  for (const GatherSegment& segment : segments) {
    if (segment.bytes == 0) continue;
    const std::uint64_t bytes =
        segment.stride * static_cast<std::uint64_t>(state.size - 1) + segment.bytes;
    if (range == nullptr) range = state.peers->find(segment.full, bytes);
    if (range == nullptr || !range->holds(segment.full, bytes)) return nullptr;
  }
  return range;
}

/// The same for a reduce-scatter, of which the peers write to the scratch.
inline const PeerRange* peer_range(const NcclState& state, std::span<const ReduceSegment> segments,
                                   const std::byte* scratch) {
  if (!state.peers || state.channel < 0 || scratch == nullptr || state.size == 1) return nullptr;
  ReduceScratch parts(const_cast<std::byte*>(scratch), state.rank, state.size, true);
  for (const ReduceSegment& segment : segments) parts.pass(segment);
  return state.peers->find(scratch, parts.used());
}

inline void gather_by_copies(const PeerCollective& to, const NcclPlace& place,
                             std::span<const GatherSegment> segments) {
  to.begin();
  for (int step = 1; step < to.size(); ++step) {
    const int peer = (to.rank() + step) % to.size();
    for (const GatherSegment& segment : segments) {
      to.push(peer, at(segment.full, segment.stride * static_cast<std::uint64_t>(to.rank())),
              segment.piece, segment.bytes);
    }
  }
  to.end_pushes();
  for (const GatherSegment& segment : segments) copy_own_piece(place, segment);
  to.end();
}

/// Every rank's part of the gradients into its scratch, as add_exchange() does.
inline void exchange_by_copies(const PeerCollective& to, std::span<const ReduceSegment> segments,
                               std::byte* scratch) {
  to.begin();
  for (int step = 1; step < to.size(); ++step) {
    const int peer = (to.rank() + step) % to.size();
    // Where the peer keeps this rank's part: its scratch begins at the same offset.
    ReduceScratch parts(scratch, peer, to.size(), true);
    for (const ReduceSegment& segment : segments) {
      const std::uint64_t bytes = segment.elements * size_of(segment.dtype);
      const std::uint64_t stride = segment.stride * size_of(segment.dtype);
      to.push(peer, parts.part(segment, to.rank()),
              at(segment.full, stride * static_cast<std::uint64_t>(peer)), bytes);
      parts.pass(segment);
    }
  }
  to.end_pushes();
  to.end();
}

/// How long an all-gather takes, by NCCL and by copies.
struct GatherTimes {
  double nccl_ms = 0;
  double copies_ms = 0;
};

/// Of `bytes` at the range's beginning. Collective; the slowest rank's times, on all.
inline GatherTimes time_gathers(NcclState& state, const PeerRange& range, std::uint64_t bytes) {
  constexpr int kRuns = 4;
  const std::uint64_t piece = bytes / static_cast<std::uint64_t>(state.size) / 256 * 256;
  const PassingWork work(0);
  cudaEvent_t marks[2] = {};
  for (cudaEvent_t& mark : marks) check_cuda(cudaEventCreate(&mark), "making an event");
  const NcclPlace place{state.comm, state.rank, state.size, work.stream()};
  const GatherSegment segment{range.base() + piece * static_cast<std::uint64_t>(state.rank),
                              range.base(), piece, piece};
  const auto throw_problem = [&](std::string_view problem) {
    throw CommunicatorError(state.rank, "", "timing a gather", problem);
  };
  const auto time = [&](auto&& enqueue) {
    enqueue();  // what is set up at a first call
    check_cuda(cudaEventRecord(marks[0], work.stream()), "timing a gather");
    for (int run = 0; run < kRuns; ++run) enqueue();
    check_cuda(cudaEventRecord(marks[1], work.stream()), "timing a gather");
    await_stream(state, work.stream(), throw_problem);
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, marks[0], marks[1]), "timing a gather");
    return static_cast<double>(ms) / kRuns;
  };
  GatherTimes mine;
  mine.nccl_ms = time([&] {
    NcclState::Lock lock(state.mutex);
    NcclGroup group;
    add_gather(group, place, segment);
    const ncclResult_t result = group.end();
    state.finish(lock, result, group.call(), throw_problem);
  });
  state.peers->note(work.stream());
  mine.copies_ms = time([&] {
    gather_by_copies(PeerCollective(state.peers->flags(), range, state.channel, work.stream()),
                     place, {&segment, 1});
  });
  state.peers->forget(work.stream());
  for (cudaEvent_t mark : marks) (void)cudaEventDestroy(mark);
  GatherTimes slowest;
  for (const GatherTimes& each : exchange_values(state, mine, "timing a gather")) {
    slowest.nccl_ms = std::max(slowest.nccl_ms, each.nccl_ms);
    slowest.copies_ms = std::max(slowest.copies_ms, each.copies_ms);
  }
  return slowest;
}

/// Memory that the peers have opened; null where that cannot be, and state.note says why.
/// Collective.
inline void* allocate_peer_memory(NcclState& state, std::uint64_t bytes) {
  state.note.clear();
  const std::uint64_t aligned = (bytes + 255) / 256 * 256;
  const std::uint64_t all = aligned + PeerRange::flag_bytes(state.size);
  PeerOffer offer;
  offer.host = this_host();
  offer.process = this_process();
  offer.bytes = bytes;
  offer.device = state.device;
  void* memory = nullptr;
  if (!state.peers || !state.peers->flags().available()) {
    state.note = "the driver has no memory operations for streams";
  } else if (cudaMalloc(&memory, all) != cudaSuccess) {
    (void)cudaGetLastError();
    state.note = concat("there are no ", all, " bytes of device memory");
  } else {
    offer.address = reinterpret_cast<std::uint64_t>(memory);
    offer.made =
        cudaMemset(static_cast<std::byte*>(memory) + aligned, 0, all - aligned) == cudaSuccess &&
        cudaIpcGetMemHandle(&offer.handle, memory) == cudaSuccess &&
        cudaDeviceSynchronize() == cudaSuccess;
    if (!offer.made) {
      (void)cudaGetLastError();
      state.note = "the memory cannot be shared with other processes";
    }
  }
  auto range =
      std::make_unique<PeerRange>(static_cast<std::byte*>(memory), aligned, state.rank, state.size);
  const std::vector<PeerOffer> offers = exchange_values(state, offer, "opening the ranks' memory");
  int opened = 1;
  for (int r = 0; r < state.size; ++r) {
    const PeerOffer& theirs = offers[static_cast<std::size_t>(r)];
    if (theirs.bytes != bytes) {
      (void)cudaFree(memory);
      fail("tessera: rank ", r, " allocates ", theirs.bytes, " bytes and rank ", state.rank, " ",
           bytes, ": the ranks' plans differ");
    }
    if (r == state.rank || opened == 0) continue;
    if (theirs.host != offer.host) {
      opened = 0;
      state.note = "the ranks are on several hosts";
    } else if (!theirs.made || !offer.made || !range->open(r, theirs, state.device)) {
      opened = 0;
      if (state.note.empty()) state.note = concat("the memory of rank ", r, " cannot be opened");
    }
  }
  bool all_opened = true;
  for (const int each : exchange_values(state, opened, "opening the ranks' memory")) {
    all_opened = all_opened && each != 0;
  }
  if (!all_opened) {
    range.reset();
    (void)exchange_values(state, 0, "closing the ranks' memory");  // before it is freed
    (void)cudaFree(memory);
    if (state.note.empty()) state.note = "another rank cannot open this one's memory";
    return nullptr;
  }
  state.peers->add(std::move(range), state.device);
  return memory;
}

/// Ends it. The peers have closed theirs before any is freed, where all are there to say so.
inline void release_peer_memory(NcclState& state, void* memory) noexcept {
  std::unique_ptr<PeerRange> range = state.peers->remove(memory);
  if (range == nullptr) return;
  range->close();
  state.peers->forget_streams();
  if (!state.family->aborted()) {
    try {
      (void)exchange_values(state, 0, "closing the ranks' memory");
    } catch (...) {  // who is gone has nothing open
    }
  }
  (void)cudaFree(memory);
}

}  // namespace tessera::detail
