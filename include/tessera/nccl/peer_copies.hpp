// Collectives as copies between the memory of ranks on one host: copy engines move the bytes, and
// flags that streams write and wait for take the place of kernels that spin.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
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

/// One collective on a channel, between two ranks A and B (each is both):
///
///   A: raise ready at B | wait for B's ready, take it down | push to B | raise done at B | wait
///   for B's done, take it down
///
/// A raises `ready` at B again only in its next collective, after it has seen B's `done`, which B
/// raised after it took A's `ready` down; the same holds for `done` with the next `ready` in
/// between. So flags need no counting, and a graph may replay them.
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
  // Left by an exception, nothing on the stream may wait for ever.
  struct Drained {
    NcclState& state;
    cudaStream_t stream;
    int exceptions = std::uncaught_exceptions();
    ~Drained() {
      if (std::uncaught_exceptions() == exceptions) return;
      state.family->abort(concat("rank ", state.rank, ": timing a gather failed"));
      (void)cudaStreamSynchronize(stream);
    }
  };
  const Drained drained{state, work.stream()};
  CudaMark begin, end;
  const GatherSegment segment{range.base() + piece * static_cast<std::uint64_t>(state.rank),
                              range.base(), piece, piece};
  const auto throw_problem = [&](std::string_view problem) {
    throw CommunicatorError(state.rank, "", "timing a gather", problem);
  };
  const auto time = [&](auto&& enqueue) {
    const auto locked = [&] {
      NcclState::Lock lock(state.mutex);
      if (!state.comm) throw_problem(state.family->reason());
      enqueue(lock, NcclPlace{state.comm, state.rank, state.size, work.stream()});
    };
    locked();  // what is set up at a first call
    check_cuda(cudaEventRecord(begin.make(state.device), work.stream()), "timing a gather");
    for (int run = 0; run < kRuns; ++run) locked();
    check_cuda(cudaEventRecord(end.make(state.device), work.stream()), "timing a gather");
    await_stream(state, work.stream(), throw_problem);
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin.handle(), end.handle()), "timing a gather");
    return static_cast<double>(ms) / kRuns;
  };
  GatherTimes mine;
  mine.nccl_ms = time([&](NcclState::Lock& lock, const NcclPlace& place) {
    NcclGroup group;
    add_gather(group, place, segment);
    const ncclResult_t result = group.end();
    state.finish(lock, result, group.call(), throw_problem);
  });
  mine.copies_ms = time([&](NcclState::Lock&, const NcclPlace& place) {
    gather_by_copies(PeerCollective(state.peers->flags(), range, state.channel, work.stream()),
                     place, {&segment, 1});
  });
  GatherTimes slowest;
  for (const GatherTimes& each : gather_values(state, mine, "timing a gather")) {
    slowest.nccl_ms = std::max(slowest.nccl_ms, each.nccl_ms);
    slowest.copies_ms = std::max(slowest.copies_ms, each.copies_ms);
  }
  return slowest;
}

/// Device memory that is freed unless it is kept.
class UnlessKept {
 public:
  explicit UnlessKept(void* memory) : memory_(memory) {}
  UnlessKept(const UnlessKept&) = delete;
  UnlessKept& operator=(const UnlessKept&) = delete;
  ~UnlessKept() { (void)cudaFree(memory_); }
  void* keep() { return std::exchange(memory_, nullptr); }

 private:
  void* memory_;
};

/// Whether streams of the device write flags and wait for them: a driver may have the call for
/// other devices.
inline bool takes_flags(const StreamFlags& flags, std::byte* flag) {
  try {
    const PassingWork work(0);
    StreamFlags::Operations operations;
    operations.raise(flag).take(flag);
    flags.enqueue(work.stream(), operations);
    return cudaStreamSynchronize(work.stream()) == cudaSuccess;
  } catch (const Error&) {
    return false;
  }
}

/// Memory that the peers have opened; null where that cannot be, and state.note says why.
/// Collective.
inline void* allocate_peer_memory(NcclState& state, std::uint64_t bytes) {
  state.note.clear();
  const std::uint64_t aligned = (bytes + 255) / 256 * 256;
  const std::uint64_t all = PeerRange::allocated_bytes(aligned, state.size);
  PeerOffer offer;
  offer.host = this_host();
  offer.process = this_process();
  offer.bytes = bytes;
  offer.device = state.device;
  void* memory = nullptr;
  if (!state.peers || !state.peers->flags().available()) {
    state.note = "the driver has no memory operations for streams";
  } else if (state.channel < 0) {
    state.note = "the group has made more channels than there are flags for";
  } else if (cudaMalloc(&memory, all) != cudaSuccess) {
    (void)cudaGetLastError();
    state.note = concat("there are no ", all, " bytes of device memory");
  } else {
    offer.address = reinterpret_cast<std::uint64_t>(memory);
    offer.made =
        cudaMemset(static_cast<std::byte*>(memory) + aligned, 0, all - aligned) == cudaSuccess &&
        cudaIpcGetMemHandle(&offer.handle, memory) == cudaSuccess &&
        cudaDeviceSynchronize() == cudaSuccess && offer.host != 0 &&
        takes_flags(state.peers->flags(), static_cast<std::byte*>(memory) + aligned);
    if (!offer.made) {
      (void)cudaGetLastError();
      state.note =
          "the device's memory cannot be shared with other processes, or its streams do not wait "
          "for flags";
    }
  }
  UnlessKept owned(memory);
  auto range =
      std::make_unique<PeerRange>(static_cast<std::byte*>(memory), aligned, state.rank, state.size);
  const std::vector<PeerOffer> offers = gather_values(state, offer, "opening the ranks' memory");
  for (int r = 0; r < state.size; ++r) {  // before any is opened
    const std::uint64_t theirs = offers[static_cast<std::size_t>(r)].bytes;
    if (theirs != bytes) {
      fail("tessera: rank ", r, " allocates ", theirs, " bytes and rank ", state.rank, " ", bytes,
           ": the ranks' plans differ");
    }
  }
  int opened = 1;
  for (int r = 0; r < state.size; ++r) {
    const PeerOffer& theirs = offers[static_cast<std::size_t>(r)];
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
  for (const int each : gather_values(state, opened, "opening the ranks' memory")) {
    all_opened = all_opened && each != 0;
  }
  if (!all_opened) {
    range.reset();
    (void)gather_values(state, 0, "closing the ranks' memory");  // before it is freed
    if (state.note.empty()) state.note = "another rank cannot open this one's memory";
    return nullptr;
  }
  state.peers->add(std::move(range), state.device);
  return owned.keep();
}

/// Ends it, when all peers have closed theirs. After an abort nobody can say so, and a live peer
/// may still push: then it stays taken until the process ends.
inline void release_peer_memory(NcclState& state, void* memory) noexcept {
  std::unique_ptr<PeerRange> range = state.peers->remove(memory);
  if (range == nullptr) return;
  if (state.family->aborted()) return;
  range->close();
  constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);
  const auto timeout =
      std::exchange(state.options.timeout, std::min(state.options.timeout, kPatience));
  bool closed = true;
  try {
    (void)gather_values(state, 0, "closing the ranks' memory");
  } catch (...) {  // a peer did not come
    closed = false;
  }
  state.options.timeout = timeout;
  if (closed) (void)cudaFree(memory);
}

}  // namespace tessera::detail
