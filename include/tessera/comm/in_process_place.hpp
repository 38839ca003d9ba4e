// A rank's place in a group of threads of one process: who meets whom, and what has been counted.
// The communicators of in-process ranks are made of it; what they move, and how, is theirs.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/comm/rendezvous.hpp"
#include "tessera/comm/timeout.hpp"
#include "tessera/error.hpp"

namespace tessera::detail {

/// Copies share the channel and its counts.
class InProcessPlace {
 public:
  /// A group of one.
  InProcessPlace() : InProcessPlace(make_group(1, std::make_shared<RendezvousFamily>()), 0) {}

  /// The places of a new group of `size` ranks.
  static std::vector<InProcessPlace> group(int size, std::chrono::milliseconds timeout) {
    if (size < 1) fail("tessera: a group must have at least 1 rank, not ", size);
    auto family = std::make_shared<RendezvousFamily>();
    family->timeout = checked_timeout(timeout, "in-process ranks");
    const auto shared = make_group(size, std::move(family));
    std::vector<InProcessPlace> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(InProcessPlace(shared, r));
    return ranks;
  }

  int rank() const { return rank_; }
  int size() const { return meeting_->size(); }
  Rendezvous& meeting() const { return *meeting_; }

  /// A further order of meetings of the same ranks. Collective: every rank makes its channels in
  /// the same order, from the caller's thread.
  InProcessPlace channel() {
    const std::lock_guard lock(group_->mutex);
    const std::uint64_t number = group_->channels_made[static_cast<std::size_t>(rank_)]++;
    auto& meeting = group_->channels[number];
    if (!meeting) meeting = Rendezvous::create(meeting_->family(), size(), meeting_->names());
    return InProcessPlace(group_, rank_, meeting);
  }

  /// The ranks with the same color form a new group, ordered by (key, rank). Collective over this
  /// group, blocking the caller.
  InProcessPlace split(int color, int key) {
    struct Claim {
      int color;
      int key;
      std::shared_ptr<Group> made;
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
      std::vector<int> names;
      for (const auto& member : members) names.push_back(meeting_->name_of_rank(member.second));
      mine.made =
          make_group(static_cast<int>(members.size()), meeting_->family(), std::move(names));
    }
    meeting_->leave(rank_);
    meeting_->arrive(rank_, {"split", "the group", 1, &mine});
    const auto* made = static_cast<const Claim*>(meeting_->post(leader).payload);
    const std::shared_ptr<Group> group = made->made;
    meeting_->leave(rank_);
    int place = 0;
    while (members[static_cast<std::size_t>(place)].second != rank_) ++place;
    return InProcessPlace(group, place);
  }

  /// What all ranks brought, in rank order. Collective, blocking the caller.
  template <class T>
  std::vector<T> exchange(std::string_view name, const T& mine) const {
    meeting_->arrive(rank_, {"exchange", name, sizeof(T), &mine});
    std::vector<T> all;
    for (int r = 0; r < size(); ++r) {
      all.push_back(*static_cast<const T*>(meeting_->post(r).payload));
    }
    meeting_->leave(rank_);
    return all;
  }

  CollectiveCounts counts() const {
    const std::lock_guard lock(counted_->mutex);
    return counted_->counts;
  }
  void count(CollectiveKind kind, std::uint64_t bytes) const {
    const std::lock_guard lock(counted_->mutex);
    ++counted_->counts[kind].count;
    counted_->counts[kind].bytes += bytes;
  }

  void abort(const std::string& reason) { meeting_->family()->abort(reason); }
  bool aborted() const { return meeting_->aborted(); }
  /// Of this channel alone: see Communicator.
  void reset() { meeting_->meet_to_reset(rank_); }

 private:
  struct Group {
    std::mutex mutex;
    std::map<std::uint64_t, std::shared_ptr<Rendezvous>> channels;
    std::vector<std::uint64_t> channels_made;  // by each rank
  };
  struct Counted {
    std::mutex mutex;
    CollectiveCounts counts;
  };

  InProcessPlace(std::shared_ptr<Group> group, int rank)
      : InProcessPlace(group, rank, group->channels.at(0)) {}
  InProcessPlace(std::shared_ptr<Group> group, int rank, std::shared_ptr<Rendezvous> meeting)
      : group_(std::move(group)),
        meeting_(std::move(meeting)),
        counted_(std::make_shared<Counted>()),
        rank_(rank) {}

  static std::shared_ptr<Group> make_group(int size, std::shared_ptr<RendezvousFamily> family,
                                           std::vector<int> names = {}) {
    auto group = std::make_shared<Group>();
    group->channels[0] = Rendezvous::create(std::move(family), size, std::move(names));
    group->channels_made.assign(static_cast<std::size_t>(size), 1);
    return group;
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<Rendezvous> meeting_;
  std::shared_ptr<Counted> counted_;  // shared by the copies that streams hold
  int rank_ = 0;
};

/// So that ranks with other segments are found out before they read each other's.
inline std::uint64_t mix_part(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15u + 1;
}
inline std::uint64_t parts_of(std::span<const GatherSegment> segments) {
  std::uint64_t parts = 0;
  for (const GatherSegment& s : segments) parts = mix_part(mix_part(parts, s.bytes), s.stride);
  return parts;
}
inline std::uint64_t parts_of(std::span<const ReduceSegment> segments) {
  std::uint64_t parts = 0;
  for (const ReduceSegment& s : segments) {
    parts = mix_part(mix_part(mix_part(parts, s.elements), s.stride),
                     static_cast<std::uint64_t>(s.dtype));
  }
  return parts;
}
inline std::uint64_t bytes_of(std::span<const GatherSegment> segments) {
  std::uint64_t bytes = 0;
  for (const GatherSegment& s : segments) bytes += s.bytes;
  return bytes;
}
inline std::uint64_t bytes_of(std::span<const ReduceSegment> segments) {
  std::uint64_t bytes = 0;
  for (const ReduceSegment& s : segments) bytes += s.elements * size_of(s.dtype);
  return bytes;
}

/// Runs `body(rank's communicator)` on a thread a rank, and returns when all have ended. If any
/// threw, the others' collectives fail at once and the cause is thrown here (what a rank threw by
/// itself, before what it threw because another had failed).
template <class Comm, class Body>
void run_threads(std::vector<Comm> ranks, Body&& body) {
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
  for (std::size_t r = 1; r < ranks.size(); ++r) threads.emplace_back(run, r);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
}

}  // namespace tessera::detail
