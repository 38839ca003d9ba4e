// In-process ranks on CUDA: threads of one process, over any number of GPUs, several on one
// included. Gathers are copies, sums read the other ranks' memory in rank order.
#pragma once

#include <cuda_runtime_api.h>

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
#include "tessera/comm/in_process_place.hpp"
#include "tessera/cuda/error.hpp"
#include "tessera/cuda/rank_sum.hpp"
#include "tessera/cuda/stream.hpp"
#include "tessera/exact/bf16.hpp"

namespace tessera {

/// A rank's handle on a group of in-process ranks whose memory is on GPUs. Copies share the
/// channel.
///
/// A collective is a meeting of the ranks' host threads, at which they exchange addresses and
/// events that have been recorded; then each enqueues its copies or its sum behind the others'
/// events, and what it enqueues later behind everyone's reading. So no rank's stream ever waits for
/// something that is not in a stream already, and no kernel spins. A call blocks until all ranks
/// have made it; a rank that stays away fails the others within the time-out.
///
/// Ranks on different GPUs need peer access between them (NVLink, or PCIe below one root).
class CudaInProcess {
 public:
  static constexpr bool needs_reduce_scratch = false;

  CudaInProcess() = default;
  static std::vector<CudaInProcess> group(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    std::vector<CudaInProcess> ranks;
    for (auto& place : detail::InProcessPlace::group(size, timeout)) {
      ranks.push_back(CudaInProcess(std::move(place)));
    }
    return ranks;
  }

  int rank() const { return place_.rank(); }
  int size() const { return place_.size(); }
  CudaInProcess channel() { return CudaInProcess(place_.channel()); }
  CudaInProcess split(int color, int key = 0) { return CudaInProcess(place_.split(color, key)); }
  /// A number of each rank's, in rank order, such as a loss. Collective, blocking the caller.
  std::vector<double> exchange(double mine) const { return place_.exchange("a number", mine); }

  void all_gather(CudaStream& stream, CollectiveTag tag, std::span<const GatherSegment> segments) {
    meet(stream, tag, detail::bytes_of(segments), detail::parts_of(segments), &segments,
         [&](int peer, const void* payload) {
           const auto& theirs = *static_cast<const std::span<const GatherSegment>*>(payload);
           for (std::size_t i = 0; i < segments.size(); ++i) {
             const GatherSegment& segment = segments[i];
             copy(stream,
                  static_cast<std::byte*>(segment.full) +
                      segment.stride * static_cast<std::uint64_t>(peer),
                  theirs[i].piece, segment.bytes);
           }
         });
  }
  void reduce_scatter(CudaStream& stream, CollectiveTag tag,
                      std::span<const ReduceSegment> segments, std::byte* = nullptr) {
    std::vector<const std::span<const ReduceSegment>*> all(static_cast<std::size_t>(size()));
    int met = 0;
    meet(stream, tag, detail::bytes_of(segments), detail::parts_of(segments), &segments,
         [&](int peer, const void* payload) {
           all[static_cast<std::size_t>(peer)] =
               static_cast<const std::span<const ReduceSegment>*>(payload);
           if (++met < size()) return;
           for (std::size_t i = 0; i < segments.size(); ++i) {
             if (segments[i].elements == 0) continue;
             if (segments[i].dtype == DType::f32) {
               sum<float, float>(stream, segments[i], all, i);
             } else if (segments[i].out_dtype == DType::f32) {
               sum<bf16, float>(stream, segments[i], all, i);
             } else {
               sum<bf16, bf16>(stream, segments[i], all, i);
             }
           }
         });
  }
  /// `bytes` at `data` of rank `root` arrive at `data` of every rank.
  void broadcast(CudaStream& stream, CollectiveTag tag, void* data, std::uint64_t bytes, int root) {
    meet(
        stream, tag, rank() == root ? 0 : bytes, bytes, data,
        [&](int peer, const void* payload) {
          if (peer == root && rank() != root) copy(stream, data, payload, bytes);
        },
        1);
  }

  /// Of the collectives that have been enqueued on this handle.
  CollectiveCounts counts() const { return place_.counts(); }
  std::string transport_note() const {
    return "gathers by copies between the ranks' memory, sums by kernels that read it in rank "
           "order.";
  }
  void abort(const std::string& reason) { place_.abort(reason); }
  bool aborted() const { return place_.aborted(); }
  /// Of this channel alone: see Communicator.
  void reset() { place_.reset(); }

 private:
  // What a rank shows the others of itself.
  struct Visit {
    const void* payload = nullptr;
    cudaEvent_t ready = nullptr;  // what the others read has been written
    cudaEvent_t done = nullptr;   // this rank has read what it wanted
    int device = 0;
  };
  struct Events {
    CudaEvent ready;
    CudaEvent done;
    std::vector<int> reachable;  // devices with peer access from this rank's
  };

  explicit CudaInProcess(detail::InProcessPlace place) : place_(std::move(place)) {}

  // One collective: `visit(peer, its payload)` for every rank, this one included, enqueues work on
  // the stream that may read what the payload names. `payload` is what the others get of this one.
  template <class Visitor>
  void meet(CudaStream& stream, CollectiveTag tag, std::uint64_t bytes, std::uint64_t parts,
            const void* payload, Visitor&& visitor, std::uint64_t received_from = 0) {
    if (stream.failure) return;  // as on Host: what follows a failure on a stream is skipped
    try {
      if (size() == 1) {
        visitor(0, payload);
        return;
      }
      refuse_capture(stream);
      meet_others(stream, tag, parts, payload, visitor, bytes);
      const std::uint64_t peers =
          received_from != 0 ? received_from : static_cast<std::uint64_t>(size() - 1);
      place_.count(tag.kind, bytes * peers);
    } catch (...) {
      stream.fail(std::current_exception());
    }
  }

  template <class Visitor>
  void meet_others(CudaStream& stream, CollectiveTag tag, std::uint64_t parts, const void* payload,
                   Visitor&& visitor, std::uint64_t bytes) {
    struct Shown {
      Visit visit;
      std::shared_ptr<Events> events;
    };
    Events& own = *events_;
    Shown shown{
        {payload, own.ready.make(stream.device), own.done.make(stream.device), stream.device},
        events_};
    detail::check_cuda(cudaEventRecord(own.ready.handle(), stream.handle), "recording an event");
    std::vector<Visit> visits(static_cast<std::size_t>(size()));
    // Kept until this rank has enqueued its waits: the others may end their channels before.
    std::vector<std::shared_ptr<Events>> others(visits.size());
    detail::Rendezvous& meeting = place_.meeting();
    const bool uniform = tag.kind != CollectiveKind::broadcast;  // a broadcast's bytes are parts
    meeting.arrive(rank(), {name_of(tag.kind), tag.name, uniform ? bytes : parts, &shown, parts});
    std::exception_ptr failure;
    try {
      for (int step = 0; step < size(); ++step) {
        const int peer = (rank() + step) % size();  // not all from the same peer at once
        const auto& theirs = *static_cast<const Shown*>(meeting.post(peer).payload);
        visits[static_cast<std::size_t>(peer)] = theirs.visit;
        others[static_cast<std::size_t>(peer)] = theirs.events;
        reach(stream.device, theirs.visit.device);
        if (peer != rank()) wait(stream, theirs.visit.ready);
        visitor(peer, theirs.visit.payload);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    // Whatever happened, the others wait for this rank's event and for it to leave.
    const cudaError_t recorded = cudaEventRecord(own.done.handle(), stream.handle);
    meeting.leave(rank());
    if (failure) std::rethrow_exception(failure);
    detail::check_cuda(recorded, "recording an event");
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) wait(stream, visits[static_cast<std::size_t>(peer)].done);
    }
  }

  static void wait(CudaStream& stream, cudaEvent_t event) {
    detail::check_cuda(cudaStreamWaitEvent(stream.handle, event, 0), "waiting for another rank");
  }
  static void copy(CudaStream& stream, void* to, const void* from, std::uint64_t bytes) {
    if (bytes == 0 || to == from) return;
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.handle),
                       "copying from another rank");
  }

  template <class T, class O>
  void sum(CudaStream& stream, const ReduceSegment& part,
           const std::vector<const std::span<const ReduceSegment>*>& all, std::size_t segment) {
    std::vector<const T*> sources;
    for (const auto* theirs : all) {
      sources.push_back(static_cast<const T*>((*theirs)[segment].full) +
                        part.stride * static_cast<std::uint64_t>(rank()));
    }
    detail::launch_rank_sum(stream.handle, part.elements, sources.data(), size(), part.scale,
                            part.accumulate, static_cast<O*>(part.out));
  }

  // Sums read the other ranks' memory: on another GPU that takes peer access, once a process.
  void reach(int from, int to) {
    if (from == to) return;
    for (int device : events_->reachable) {
      if (device == to) return;
    }
    int possible = 0;
    detail::check_cuda(cudaDeviceCanAccessPeer(&possible, from, to), "asking for peer access");
    if (possible == 0) {
      detail::fail("tessera: GPU ", from, " cannot read the memory of GPU ", to,
                   ": put all in-process ranks on one GPU, or use NCCL");
    }
    const CudaDeviceScope scope(from);
    const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      detail::check_cuda(error, "enabling peer access");
    }
    events_->reachable.push_back(to);
  }

  static void refuse_capture(const CudaStream& stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    detail::check_cuda(cudaStreamIsCapturing(stream.handle, &status), "asking for a capture");
    if (status == cudaStreamCaptureStatusNone) return;
    detail::fail(
        "tessera: collectives of in-process ranks cannot be captured into a graph, since graphs of "
        "different ranks cannot wait for each other: use NCCL, or one rank");
  }

  detail::InProcessPlace place_;
  std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

/// Runs `body(communicator)` on `size` threads, one a rank, and returns when all have ended; the
/// threads take the visible GPUs in turn, which are current on them. See run_ranks.
template <class Body>
void run_cuda_ranks(int size, Body&& body,
                    std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  int devices = 0;
  detail::check_cuda(cudaGetDeviceCount(&devices), "counting devices");
  if (devices == 0) detail::check_cuda(cudaErrorNoDevice, "counting devices");
  const CudaDeviceScope caller(0);
  detail::run_threads(CudaInProcess::group(size, timeout), [&](CudaInProcess& ranks) {
    detail::check_cuda(cudaSetDevice(ranks.rank() % devices), "choosing the rank's device");
    body(ranks);
  });
}

}  // namespace tessera
