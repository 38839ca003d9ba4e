// Ranks that are threads of one process, with sums in rank order.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/backend/host_stream.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/rendezvous.hpp"
#include "tessera/error.hpp"
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
  /// A group of one: collectives are local and are not counted.
  InProcess() : InProcess(make_group(1)) {}

  /// Handles for a new group of `size` ranks, of which this is rank 0; see run_ranks.
  static std::vector<InProcess> group(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    if (size < 1) detail::fail("tessera: a group must have at least 1 rank, not ", size);
    const auto shared = make_group(size, timeout);
    std::vector<InProcess> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(InProcess(shared, r));
    return ranks;
  }

  int rank() const { return rank_; }
  int size() const { return meeting_->size(); }

  /// A further order of collectives over the same ranks. Collective: every rank makes its channels
  /// in the same order, from the caller's thread.
  InProcess channel() {
    const std::lock_guard lock(group_->mutex);
    const std::uint64_t number = group_->channels_made[static_cast<std::size_t>(rank_)]++;
    auto& meeting = group_->channels[number];
    if (!meeting) meeting = detail::Rendezvous::create(meeting_->family(), size());
    return InProcess(group_, rank_, meeting);
  }

  /// The ranks with the same color form a new group, ordered by (key, rank). Collective over this
  /// group, blocking the caller.
  InProcess split(int color, int key = 0) {
    struct Claim {
      int color;
      int key;
      InProcess made;
    };
    Claim mine{color, key, {}};
    meeting_->arrive(rank_, {"split", "the group", 0, &mine});
    std::vector<std::pair<int, int>> members;  // (key, rank)
    for (int r = 0; r < size(); ++r) {
      const auto* claim = static_cast<const Claim*>(meeting_->post(r).payload);
      if (claim->color == color) members.push_back({claim->key, r});
    }
    for (std::size_t i = 1; i < members.size(); ++i) {  // insertion sort: a handful of ranks
      for (std::size_t j = i; j > 0 && members[j] < members[j - 1]; --j) {
        std::swap(members[j], members[j - 1]);
      }
    }
    const int leader = members.front().second;
    if (rank_ == leader) {
      mine.made = InProcess(make_group(static_cast<int>(members.size()), meeting_->family()), 0);
    }
    meeting_->leave(rank_);
    meeting_->arrive(rank_, {"split", "the group", 1, &mine});
    const auto* made = static_cast<const Claim*>(meeting_->post(leader).payload);
    const std::shared_ptr<Group> group = made->made.group_;
    meeting_->leave(rank_);
    int place = 0;
    while (members[static_cast<std::size_t>(place)].second != rank_) ++place;
    return InProcess(group, place);
  }

  void all_gather(HostStream& stream, CollectiveTag tag, std::span<const GatherSegment> segments) {
    stream.enqueue([self = *this, tag, parts = to_vector(segments)] { self.gather(tag, parts); });
  }
  void reduce_scatter(HostStream& stream, CollectiveTag tag,
                      std::span<const ReduceSegment> segments) {
    stream.enqueue([self = *this, tag, parts = to_vector(segments)] { self.reduce(tag, parts); });
  }
  /// `bytes` at `data` of rank `root` arrive at `data` of every rank.
  void broadcast(HostStream& stream, CollectiveTag tag, void* data, std::uint64_t bytes, int root) {
    stream.enqueue([=, self = *this] {
      if (self.size() == 1) return;
      self.meeting_->arrive(self.rank_, {name_of(tag.kind), tag.name, bytes, data});
      const void* from = self.meeting_->post(root).payload;
      if (self.rank_ != root && bytes > 0) std::memcpy(data, from, bytes);
      self.meeting_->leave(self.rank_);
      self.count(tag.kind, self.rank_ == root ? 0 : bytes);
    });
  }

  CollectiveCounts counts() const {
    const std::lock_guard lock(counted_->mutex);
    return counted_->counts;
  }

  void abort(const std::string& reason) { meeting_->family()->abort(reason); }
  bool aborted() const { return meeting_->aborted(); }
  /// Of this channel alone: see Communicator.
  void reset() { meeting_->meet_to_reset(rank_); }

 private:
  struct Group {
    std::mutex mutex;
    std::map<std::uint64_t, std::shared_ptr<detail::Rendezvous>> channels;
    std::vector<std::uint64_t> channels_made;  // by each rank
  };
  struct Counted {
    std::mutex mutex;
    CollectiveCounts counts;
  };

  explicit InProcess(std::shared_ptr<Group> group, int rank = 0)
      : InProcess(group, rank, group->channels.at(0)) {}
  InProcess(std::shared_ptr<Group> group, int rank, std::shared_ptr<detail::Rendezvous> meeting)
      : group_(std::move(group)),
        meeting_(std::move(meeting)),
        counted_(std::make_shared<Counted>()),
        rank_(rank) {}

  static std::shared_ptr<Group> make_group(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    auto family = std::make_shared<detail::RendezvousFamily>();
    family->timeout = timeout;
    return make_group(size, family);
  }
  static std::shared_ptr<Group> make_group(int size,
                                           std::shared_ptr<detail::RendezvousFamily> family) {
    auto group = std::make_shared<Group>();
    group->channels[0] = detail::Rendezvous::create(std::move(family), size);
    group->channels_made.assign(static_cast<std::size_t>(size), 1);
    return group;
  }
  template <class T>
  static std::vector<T> to_vector(std::span<const T> items) {
    return std::vector<T>(items.begin(), items.end());
  }

  // So that ranks with other segments are found out before they read each other's.
  static std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    return (hash ^ value) * 0x9E3779B97F4A7C15u + 1;
  }

  void count(CollectiveKind kind, std::uint64_t bytes) const {
    const std::lock_guard lock(counted_->mutex);
    ++counted_->counts[kind].count;
    counted_->counts[kind].bytes += bytes;
  }

  void gather(CollectiveTag tag, const std::vector<GatherSegment>& segments) const {
    std::uint64_t bytes = 0;
    for (const GatherSegment& s : segments) bytes += s.bytes;
    if (size() > 1) {
      std::uint64_t parts = 0;
      for (const GatherSegment& s : segments) parts = mix(mix(parts, s.bytes), s.stride);
      meeting_->arrive(rank_, {name_of(tag.kind), tag.name, bytes, &segments, parts});
    }
    for (int step = 0; step < size(); ++step) {
      const int peer = (rank_ + step) % size();  // not all from the same peer at once
      const auto& theirs =
          peer == rank_
              ? segments
              : *static_cast<const std::vector<GatherSegment>*>(meeting_->post(peer).payload);
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (segments[i].bytes == 0) continue;
        auto* to = static_cast<std::byte*>(segments[i].full) +
                   segments[i].stride * static_cast<std::uint64_t>(peer);
        if (to != theirs[i].piece) std::memcpy(to, theirs[i].piece, segments[i].bytes);
      }
    }
    if (size() == 1) return;
    meeting_->leave(rank_);
    count(tag.kind, bytes * static_cast<std::uint64_t>(size() - 1));
  }

  void reduce(CollectiveTag tag, const std::vector<ReduceSegment>& segments) const {
    std::uint64_t bytes = 0;
    for (const ReduceSegment& s : segments) bytes += s.elements * size_of(s.dtype);
    if (size() > 1) {
      std::uint64_t parts = 0;
      for (const ReduceSegment& s : segments) {
        parts = mix(mix(mix(parts, s.elements), s.stride), static_cast<std::uint64_t>(s.dtype));
      }
      meeting_->arrive(rank_, {name_of(tag.kind), tag.name, bytes, &segments, parts});
    }
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].elements == 0) continue;
      if (segments[i].dtype == DType::bf16) {
        sum<bf16>(segments, i);
      } else {
        sum<float>(segments, i);
      }
    }
    if (size() == 1) return;
    meeting_->leave(rank_);
    count(tag.kind, bytes * static_cast<std::uint64_t>(size() - 1));
  }

  template <class T>
  void sum(const std::vector<ReduceSegment>& mine, std::size_t segment) const {
    const ReduceSegment& part = mine[segment];
    std::vector<const T*> sources(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      const auto& theirs =
          r == rank_ ? mine
                     : *static_cast<const std::vector<ReduceSegment>*>(meeting_->post(r).payload);
      sources[static_cast<std::size_t>(r)] = static_cast<const T*>(theirs[segment].full) +
                                             part.stride * static_cast<std::uint64_t>(rank_);
    }
    rank_sum(part.elements, sources.data(), size(), part.scale, part.accumulate, part.out);
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<detail::Rendezvous> meeting_;
  std::shared_ptr<Counted> counted_;  // shared by the copies that streams hold
  int rank_ = 0;
};

/// Runs `body(communicator)` on `size` threads, one a rank, and returns when all have ended. If any
/// threw, the others' collectives fail at once and the cause is thrown here (what a rank threw by
/// itself, before what it threw because another had failed).
template <class Body>
void run_ranks(int size, Body&& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  std::vector<InProcess> ranks = InProcess::group(size, timeout);
  std::mutex mutex;
  std::exception_ptr cause;
  bool is_consequence = false;
  const auto run = [&](std::size_t r) {
    const auto failed = [&](bool consequence, const std::string& what) {
      {
        const std::lock_guard lock(mutex);
        if (!cause || (is_consequence && !consequence)) {
          cause = std::current_exception();
          is_consequence = consequence;
        }
      }
      ranks[r].abort("rank " + std::to_string(r) + " failed" + what);
    };
    try {
      body(ranks[r]);
    } catch (const CommunicatorError& error) {
      failed(true, std::string(": ") + error.what());
    } catch (const std::exception& error) {
      failed(false, std::string(": ") + error.what());
    } catch (...) {
      failed(false, "");
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < size; ++r) threads.emplace_back(run, static_cast<std::size_t>(r));
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
}

}  // namespace TESSERA_ISA
}  // namespace tessera
