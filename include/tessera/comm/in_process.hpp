// Ranks that are threads of one process, with sums in rank order.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backend/host_stream.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/in_process_place.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/lanes.hpp"
#include "tessera/exact/rank_sum.hpp"

namespace tessera {

inline namespace TESSERA_ISA {  // its sums are made of SIMD lanes: see backend/host.hpp

/// A rank's handle on a group of in-process ranks. Copies share the channel.
///
/// A rank that dies or stays away fails the others' collectives within the group's time-out, with
/// a message that names rank, collective and unit; one that throws should abort() (run_ranks and
/// the leases of Shard do), which fails them at once.
class InProcess {
 public:
  static constexpr bool needs_reduce_scratch = false;

  /// A group of one: collectives are local and are not counted.
  InProcess() = default;

  /// Handles for a new group of `size` ranks, of which this is rank 0; see run_ranks.
  static std::vector<InProcess> group(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    std::vector<InProcess> ranks;
    for (auto& place : detail::InProcessPlace::group(size, timeout)) {
      ranks.push_back(InProcess(std::move(place)));
    }
    return ranks;
  }

  int rank() const { return place_.rank(); }
  int size() const { return place_.size(); }
  /// A further order of collectives over the same ranks. Collective: every rank makes its channels
  /// in the same order, from the caller's thread.
  InProcess channel() { return InProcess(place_.channel()); }
  /// The ranks with the same color form a new group, ordered by (key, rank). Collective over this
  /// group, blocking the caller.
  InProcess split(int color, int key = 0) { return InProcess(place_.split(color, key)); }
  /// A number of each rank's, in rank order, such as a loss. Collective, blocking the caller.
  std::vector<double> exchange(double mine) const { return place_.exchange("a number", mine); }

  void all_gather(HostStream& stream, CollectiveTag tag, std::span<const GatherSegment> segments) {
    stream.enqueue([self = *this, tag, parts = to_vector(segments)] { self.gather(tag, parts); });
  }
  void reduce_scatter(HostStream& stream, CollectiveTag tag,
                      std::span<const ReduceSegment> segments, std::byte* = nullptr) {
    stream.enqueue([self = *this, tag, parts = to_vector(segments)] { self.reduce(tag, parts); });
  }
  /// `bytes` at `data` of rank `root` arrive at `data` of every rank.
  void broadcast(HostStream& stream, CollectiveTag tag, void* data, std::uint64_t bytes, int root) {
    stream.enqueue([=, self = *this] {
      if (self.size() == 1) return;
      detail::Rendezvous& meeting = self.place_.meeting();
      meeting.arrive(self.rank(), {name_of(tag.kind), tag.name, bytes, data});
      const void* from = meeting.post(root).payload;
      if (self.rank() != root && bytes > 0) std::memcpy(data, from, bytes);
      meeting.leave(self.rank());
      self.place_.count(tag.kind, self.rank() == root ? 0 : bytes);
    });
  }

  CollectiveCounts counts() const { return place_.counts(); }
  void abort(const std::string& reason) { place_.abort(reason); }
  bool aborted() const { return place_.aborted(); }
  /// Of this channel alone: see Communicator.
  void reset() { place_.reset(); }

 private:
  explicit InProcess(detail::InProcessPlace place) : place_(std::move(place)) {}

  template <class T>
  static std::vector<T> to_vector(std::span<const T> items) {
    return std::vector<T>(items.begin(), items.end());
  }

  void gather(CollectiveTag tag, const std::vector<GatherSegment>& segments) const {
    const std::uint64_t bytes = detail::bytes_of(std::span(segments));
    detail::Rendezvous& meeting = place_.meeting();
    if (size() > 1) {
      meeting.arrive(rank(), {name_of(tag.kind), tag.name, bytes, &segments,
                              detail::parts_of(std::span(segments))});
    }
    for (int step = 0; step < size(); ++step) {
      const int peer = (rank() + step) % size();  // not all from the same peer at once
      const auto& theirs =
          peer == rank()
              ? segments
              : *static_cast<const std::vector<GatherSegment>*>(meeting.post(peer).payload);
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (segments[i].bytes == 0) continue;
        auto* to = static_cast<std::byte*>(segments[i].full) +
                   segments[i].stride * static_cast<std::uint64_t>(peer);
        if (to != theirs[i].piece) std::memcpy(to, theirs[i].piece, segments[i].bytes);
      }
    }
    if (size() == 1) return;
    meeting.leave(rank());
    place_.count(tag.kind, bytes * static_cast<std::uint64_t>(size() - 1));
  }

  void reduce(CollectiveTag tag, const std::vector<ReduceSegment>& segments) const {
    const std::uint64_t bytes = detail::bytes_of(std::span(segments));
    detail::Rendezvous& meeting = place_.meeting();
    if (size() > 1) {
      meeting.arrive(rank(), {name_of(tag.kind), tag.name, bytes, &segments,
                              detail::parts_of(std::span(segments))});
    }
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].elements == 0) continue;
      if (segments[i].dtype == DType::f32) {
        sum<float, float>(segments, i);
      } else if (segments[i].out_dtype == DType::f32) {
        sum<bf16, float>(segments, i);
      } else {
        sum<bf16, bf16>(segments, i);
      }
    }
    if (size() == 1) return;
    meeting.leave(rank());
    place_.count(tag.kind, bytes * static_cast<std::uint64_t>(size() - 1));
  }

  template <class T, class O>
  void sum(const std::vector<ReduceSegment>& mine, std::size_t segment) const {
    const ReduceSegment& part = mine[segment];
    std::vector<const T*> sources(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      const auto& theirs =
          r == rank()
              ? mine
              : *static_cast<const std::vector<ReduceSegment>*>(place_.meeting().post(r).payload);
      sources[static_cast<std::size_t>(r)] = static_cast<const T*>(theirs[segment].full) +
                                             part.stride * static_cast<std::uint64_t>(rank());
    }
    rank_sum(part.elements, sources.data(), size(), part.scale, part.accumulate,
             static_cast<O*>(part.out));
  }

  detail::InProcessPlace place_;
};

/// Runs `body(communicator)` on `size` threads, one a rank, and returns when all have ended. If any
/// threw, the others' collectives fail at once and the cause is thrown here (what a rank threw by
/// itself, before what it threw because another had failed).
template <class Body>
void run_ranks(int size, Body&& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  detail::run_threads(InProcess::group(size, timeout), std::forward<Body>(body));
}

}  // namespace TESSERA_ISA
}  // namespace tessera
