// Ranks that are processes or threads with a GPU each, over NCCL, with sums in rank order.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/cuda/error.hpp"
#include "tessera/cuda/rank_sum.hpp"
#include "tessera/cuda/stream.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/nccl/environment.hpp"
#include "tessera/nccl/exchange.hpp"
#include "tessera/nccl/group.hpp"
#include "tessera/nccl/open.hpp"
#include "tessera/nccl/options.hpp"
#include "tessera/nccl/processes.hpp"
#include "tessera/nccl/state.hpp"
#include "tessera/nccl/transport.hpp"
#include "tessera/nccl/windows.hpp"

namespace tessera {

/// A rank's handle on an NCCL communicator. Copies share it; the last one ends it. Calls come from
/// one thread at a time, whose current device is the group's, except abort, which may come from
/// any. All ranks make the same calls in the same order, on all their channels together.
///
/// A gradient is the same to the bit as that of in-process ranks: NCCL only carries the parts, and
/// they are added in rank order. What NCCL cannot tell: ranks that disagree on a collective. They
/// wait for each other, or receive each other's bytes.
///
/// abort() reaches this rank's communicators: the group, its channels and its splits. It ends
/// kernels that wait for a peer, and calls in progress on other threads. The training state of all
/// ranks is lost with it: copies that were enqueued still run, whether or not a peer was ready for
/// them, and memory that peers have opened stays taken until the process ends. It does not reach
/// - the other ranks, whose own abort or time-out ends their waits;
/// - NCCL's collectives by copy engines (NcclOptions::cta_policy ZERO), which wait by memory
///   operations of the stream: with a peer that is dead, only the end of the process ends them (the
///   waits of NcclTransport::peer_copies end with the abort);
/// - a communicator that was adopted: it is left to its owner, and refused from then on.
/// Nothing watches the streams: a wait for one by cudaStreamSynchronize has no time-out, one by
/// synchronize() has. Graphs that were captured with a communicator's collectives have to be
/// destroyed before its last handle, which waits for them.
class Nccl {
 public:
  /// reduce_scatter needs as many bytes of scratch as the gradients have that it reduces.
  static constexpr bool needs_reduce_scratch = true;

  /// A group of one, without NCCL.
  Nccl() : Nccl(detail::open_alone({})) {}

  /// The group that a launcher started: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT,
  /// as torchrun sets them, or what mpirun of Open MPI or MPICH sets, with MASTER_ADDR and
  /// MASTER_PORT where the ranks are on several hosts; without, one rank. Makes the rank's device
  /// current. Collective.
  static Nccl from_environment(const NcclOptions& options = {}) {
    return Nccl(detail::open_from_environment(options));
  }

  /// Whether a launcher started this process as one of several.
  static bool launched() { return detail::read_launch_environment().size > 1; }

  /// The ranks that share an id, which one of them has from ncclGetUniqueId. Collective.
  static Nccl from_unique_id(const ncclUniqueId& id, int rank, int size,
                             const NcclOptions& options = {}) {
    return Nccl(detail::open_group(id, rank, size, options));
  }

  /// Ranks with another way to talk: broadcast(void* data, std::size_t bytes) brings rank 0's bytes
  /// to all, MPI_Bcast for example. Collective.
  template <class Broadcast>
    requires std::invocable<Broadcast&, void*, std::size_t>
  static Nccl from_broadcast(int rank, int size, Broadcast&& broadcast,
                             const NcclOptions& options = {}) {
    return Nccl(detail::open_by_broadcast(rank, size, broadcast, options));
  }

  /// A communicator that is the user's and stays so: it is neither aborted nor destroyed here, and
  /// outlives every handle.
  static Nccl adopt(ncclComm_t comm, const NcclOptions& options = {}) {
    return Nccl(detail::open_adopted(comm, options));
  }

  int rank() const { return state_->rank; }
  int size() const { return state_->size; }
  /// The rank's CUDA device, -1 where it does not matter.
  int device() const { return state_->device; }

  /// A further order of collectives over the same ranks, on a communicator of its own. Collective:
  /// every rank makes its channels in the same order.
  Nccl channel() { return Nccl(detail::open_child(state_, 0, rank(), "making a channel", true)); }

  /// The ranks with the same color, 0 or more, form a new group, ordered by (key, rank).
  /// Collective.
  Nccl split(int color, int key = 0) {
    return Nccl(detail::open_child(state_, color, key, "splitting the group", false));
  }

  void all_gather(CudaStream& stream, CollectiveTag tag, std::span<const GatherSegment> segments) {
    std::uint64_t bytes = 0;
    for (const GatherSegment& segment : segments) bytes += segment.bytes;
    require_stream(stream, tag);
    run(stream, [&] {
      const detail::PeerRange* const peers = detail::peer_range(*state_, segments);
      if (peers != nullptr && may_copy(stream)) {
        copy(stream, tag, bytes, *peers, [&](const detail::PeerCollective& to) {
          detail::gather_by_copies(to, place(stream), segments);
        });
        state_->count(tag.kind, bytes);
        return;
      }
      enqueue(stream, tag, bytes, [&](const detail::NcclPlace& place, detail::NcclGroup* group) {
        for (const GatherSegment& segment : segments) {
          if (!group || !detail::is_contiguous(segment)) copy_own_piece(place, segment);
          if (group) add_gather(*group, place, segment);
        }
      });
      state_->count(tag.kind, bytes);
    });
  }

  /// `scratch`: device memory, at least as many bytes as all ranks' parts of all segments have. One
  /// rank needs none.
  void reduce_scatter(CudaStream& stream, CollectiveTag tag,
                      std::span<const ReduceSegment> segments, std::byte* scratch) {
    std::uint64_t bytes = 0;
    for (const ReduceSegment& segment : segments) {
      if (segment.dtype != DType::f32 && segment.dtype != DType::bf16) {
        state_->fail_call(tag, detail::concat("gradients are f32 or bf16, not ", segment.dtype));
      }
      if (segment.out_dtype != DType::f32 && segment.out_dtype != segment.dtype) {
        state_->fail_call(tag, detail::concat("a sum of ", segment.dtype, " cannot be kept in ",
                                              segment.out_dtype));
      }
      bytes += segment.elements * size_of(segment.dtype);
    }
    if (bytes != 0 && scratch == nullptr && size() > 1) {
      state_->fail_call(tag, "no scratch memory was given");
    }
    require_stream(stream, tag);
    run(stream, [&] {
      state_->has_reduced = true;
      detail::ReduceScratch parts(scratch, rank(), size(), state_->uses_nccl());
      const detail::PeerRange* const peers = detail::peer_range(*state_, segments, scratch);
      if (peers != nullptr && may_copy(stream)) {
        copy(stream, tag, bytes, *peers, [&](const detail::PeerCollective& to) {
          detail::exchange_by_copies(to, segments, scratch);
        });
      } else {
        enqueue(stream, tag, bytes, [&](const detail::NcclPlace& place, detail::NcclGroup* group) {
          for (const ReduceSegment& segment : segments) {
            if (group) add_exchange(*group, place, segment, parts);
            parts.pass(segment);
          }
        });
        parts.rewind();
      }
      for (const ReduceSegment& segment : segments) {
        if (segment.elements != 0) {
          if (segment.dtype == DType::f32) {
            sum<float, float>(stream, segment, parts);
          } else if (segment.out_dtype == DType::f32) {
            sum<bf16, float>(stream, segment, parts);
          } else {
            sum<bf16, bf16>(stream, segment, parts);
          }
        }
        parts.pass(segment);
      }
      state_->count(tag.kind, bytes);
    });
  }

  /// `bytes` at `data` of rank `root` arrive at `data` of every rank.
  void broadcast(CudaStream& stream, CollectiveTag tag, void* data, std::uint64_t bytes, int root) {
    if (root < 0 || root >= size()) {
      state_->fail_call(tag, detail::concat("the root is rank ", root, ", but the group has ",
                                            size(), " rank(s)"));
    }
    require_stream(stream, tag);
    run(stream, [&] {
      enqueue(stream, tag, bytes, [&](const detail::NcclPlace& place, detail::NcclGroup* group) {
        if (!group) return;
        group->note(ncclBroadcast(data, data, bytes, ncclUint8, root, place.comm, place.stream),
                    "ncclBroadcast");
      });
      state_->count_received(tag.kind, rank() == root ? 0 : bytes);
    });
  }

  /// A number of each rank's, in rank order, such as a loss. Collective, blocking the caller.
  std::vector<double> exchange(double mine) { return detail::exchange_numbers(*state_, mine); }

  /// Of the collectives that have been enqueued on this handle: whether they have completed, only
  /// the stream knows. One rank by itself counts nothing, unless it is made to use NCCL.
  CollectiveCounts counts() const {
    const std::lock_guard lock(state_->counts_mutex);
    return state_->counts;
  }

  /// From any thread: see the class.
  void abort(const std::string& reason) { state_->family->abort(reason); }
  bool aborted() const { return state_->family->aborted(); }

  /// Throws after an abort: a group that was aborted is gone.
  void reset() {
    if (!aborted()) return;
    throw CommunicatorError(
        rank(), "", "reset",
        detail::concat("an NCCL group cannot be used again after an abort (",
                       state_->family->reason(), "): make a new one, and a new Shard on it"));
  }

  /// Throws what has failed so far, in `tag`'s name; the calls above do so first.
  void check(CollectiveTag tag) const {
    detail::NcclState::Lock lock(state_->mutex);
    state_->require_usable(tag);
    state_->check_async(tag);
  }

  /// Waits until the stream has done what it holds, or the event's latest record has been reached.
  /// Aborts and throws, in `tag`'s name, where that takes longer than the time-out, or a
  /// communication fails.
  void synchronize(const CudaStream& stream, CollectiveTag tag) {
    watch(tag, "a stream", [&] { return cudaStreamQuery(stream.handle); });
  }
  void synchronize(const CudaEvent& event, CollectiveTag tag) {
    if (event.handle() == nullptr) return;
    watch(tag, "an event", [&] { return cudaEventQuery(event.handle()); });
  }

  /// Makes a symmetric window of memory that all-gathers of this channel will read and write: every
  /// rank registers as many bytes, from ncclMemAlloc, in the same order, and segments lie at the
  /// same offsets in them. False where there is none: transport_note says why. The memory must
  /// outlive the channel. Collective; to be made outside of graph capture, and not on the channel
  /// of the reductions.
  bool register_memory(void* base, std::uint64_t bytes) {
    return detail::register_window(*state_, base, bytes);
  }
  /// Memory for the plan, as NcclOptions::transport asks: that the other ranks may copy to, or in a
  /// window; null where any memory will do, and transport_note says why. Every rank asks for as
  /// many bytes, and uses the same offsets for the same things. Blocking and collective, as release
  /// is: it may not be freed while others have it open.
  void* allocate(std::uint64_t bytes) { return detail::allocate_for_transport(*state_, bytes); }
  /// Gives it back. No collective on it may be under way.
  void release(void* memory) { detail::release_for_transport(*state_, memory); }
  /// A sentence or two on how this channel's bytes travel, and why not otherwise.
  std::string transport_note() const { return detail::describe_transport(*state_); }

  /// NCCL's handle, which stays this object's; null for one rank without NCCL.
  ncclComm_t native() const { return state_->comm; }

 private:
  explicit Nccl(std::shared_ptr<detail::NcclState> state) : state_(std::move(state)) {}

  detail::NcclPlace place(const CudaStream& stream) const {
    return {state_->comm, state_->rank, state_->size, stream.handle};
  }

  template <class Query>
  void watch(CollectiveTag tag, const char* what, Query&& query) {
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      const cudaError_t done = query();
      if (done == cudaSuccess) return check_peers(tag);
      if (done != cudaErrorNotReady) detail::check_cuda(done, "waiting for NCCL");
      (void)cudaGetLastError();  // it is no error
      check(tag);
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited >= state_->options.timeout) {
        const std::string problem =
            detail::concat(what, " did not get to its end within ", state_->options.timeout.count(),
                           " ms: another rank does not take part");
        abort(detail::concat("rank ", rank(), ": ", problem));
        state_->fail_call(tag, problem);
      }
      if (waited < std::chrono::microseconds(200)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(
            std::chrono::microseconds(waited < std::chrono::milliseconds(50) ? 5 : 100));
      }
    }
  }

  /// What was waited for may have been made of an aborted rank's bytes.
  void check_peers(CollectiveTag tag) {
    if (!state_->peers || !state_->peers->peer_aborted()) return;
    const std::string problem = "another rank has aborted: the training state is lost";
    abort(problem);
    state_->fail_call(tag, problem);
  }

  void require_stream(const CudaStream& stream, CollectiveTag tag) const {
    if (state_->device < 0 || stream.device == state_->device) return;
    state_->fail_call(tag, detail::concat("the stream is of CUDA device ", stream.device,
                                          ", the group of device ", state_->device));
  }

  /// What a collective fails of reaches the caller on the compute stream; a side stream keeps it
  /// for the runtime's check(), and what comes later on it is skipped.
  template <class Body>
  static void run(CudaStream& stream, Body&& body) {
    if (stream.kind == StreamKind::compute) return body();
    if (stream.failure) return;
    try {
      body();
    } catch (...) {
      stream.fail(std::current_exception());
    }
  }

  /// Calls issue(place, group), with a null group where NCCL is not used, and sees its calls
  /// through to where they are on the stream.
  template <class Issue>
  void enqueue(const CudaStream& stream, CollectiveTag tag, std::uint64_t bytes, Issue&& issue) {
    detail::NcclState::Lock lock(state_->mutex);
    state_->require_usable(tag);
    if (bytes == 0) return;
    if (!state_->uses_nccl()) {
      issue(place(stream), nullptr);
      return;
    }
    if (!state_->comm) state_->fail_call(tag, "the communicator has ended");
    state_->check_async(tag);
    detail::NcclPlace here = place(stream);
    here.stream = state_->detour.enter(stream.handle);
    detail::NcclGroup group;
    issue(here, &group);
    const ncclResult_t result = group.end();
    state_->finish(lock, result, tag, group.call());
    state_->detour.leave(stream.handle);
  }

  /// An abort reaches the waits of streams that mean the same on every thread.
  static bool may_copy(const CudaStream& stream) {
    return !detail::NcclDetour::is_needed(stream.handle);
  }
  template <class Issue>
  void copy(const CudaStream& stream, CollectiveTag tag, std::uint64_t bytes,
            const detail::PeerRange& range, Issue&& issue) {
    // With the lock held to the end: an abort comes before, and refuses, or after, and ends the
    // waits.
    const detail::NcclState::Lock lock(state_->mutex);
    state_->require_usable(tag);
    if (bytes == 0) return;
    state_->check_async(tag);
    issue(detail::PeerCollective(state_->peers->flags(), range, state_->channel, stream.handle));
  }

  template <class T, class O>
  void sum(const CudaStream& stream, const ReduceSegment& segment,
           const detail::ReduceScratch& parts) const {
    std::vector<const T*> sources(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      const bool own = r == rank() && !parts.holds_own();
      sources[static_cast<std::size_t>(r)] =
          own ? static_cast<const T*>(segment.full) + segment.stride * static_cast<std::uint64_t>(r)
              : reinterpret_cast<const T*>(parts.part(segment, r));
    }
    detail::launch_rank_sum(stream.handle, segment.elements, sources.data(), size(), segment.scale,
                            segment.accumulate, static_cast<O*>(segment.out));
  }

  std::shared_ptr<detail::NcclState> state_;
};

}  // namespace tessera
