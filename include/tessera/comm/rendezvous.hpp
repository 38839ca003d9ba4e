// Where the threads of a group of in-process ranks meet: all arrive, look at what each other
// brought, and leave together; or fail together.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/error.hpp"

namespace tessera::detail {

class Rendezvous;

/// One lock for a whole family of groups (a group, its channels, its splits): an abort of any
/// reaches all; each is reset by itself.
struct RendezvousFamily {
  std::mutex mutex;
  std::vector<std::weak_ptr<Rendezvous>> members;
  std::chrono::milliseconds timeout{30000};

  void abort_locked(const std::string& why);
  void abort(const std::string& why) {
    const std::lock_guard lock(mutex);
    abort_locked(why);
  }
};

/// What a rank brings to a meeting: the operation, so that ranks which disagree are found out, and
/// a pointer that the others may read until all have left.
struct Post {
  const char* operation = "";
  std::string_view name;
  std::uint64_t amount = 0;
  const void* payload = nullptr;
  std::uint64_t parts = 0;  ///< a hash of how the amount is made up
};

/// One order of meetings of `size` ranks.
class Rendezvous {
 public:
  /// `names`: what messages call the ranks, where that is not 0, 1, ... (a part of a group).
  static std::shared_ptr<Rendezvous> create(std::shared_ptr<RendezvousFamily> family, int size,
                                            std::vector<int> names = {}) {
    auto made = std::shared_ptr<Rendezvous>(new Rendezvous(std::move(family), size));
    made->names_ = std::move(names);
    const std::lock_guard lock(made->family_->mutex);
    made->family_->members.push_back(made);
    return made;
  }

  int size() const { return size_; }
  bool aborted() const {
    const std::lock_guard lock(family_->mutex);
    return aborted_;
  }
  const std::shared_ptr<RendezvousFamily>& family() const { return family_; }
  int name_of_rank(int rank) const {
    return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
  }
  const std::vector<int>& names() const { return names_; }
  const Post& post(int rank) const { return posts_[static_cast<std::size_t>(rank)]; }

  /// Blocks until every rank has arrived. Throws CommunicatorError on every rank if two of them
  /// brought different operations, if one does not come within the time-out, or on an abort.
  void arrive(int rank, const Post& mine) {
    std::unique_lock lock(family_->mutex);
    posts_[static_cast<std::size_t>(rank)] = mine;
    meet(lock, rank, mine);
  }
  /// Blocks until every rank has left: until then the others may read what this one brought. An
  /// abort does not cut it short: all who arrived are on their way here, and one that left early
  /// could free memory that another still reads.
  void leave(int) {
    std::unique_lock lock(family_->mutex);
    const std::uint64_t generation = generation_;
    if (++arrived_ == size_) {
      forget();
      lock.unlock();
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return generation_ != generation; });
  }

  /// A meeting that an abort does not disturb and that ends it, for this order of meetings alone:
  /// others of the family may have work under way. No rank may be in a meeting of it any more.
  void meet_to_reset(int rank) {
    std::unique_lock lock(family_->mutex);
    const std::uint64_t generation = reset_generation_;
    if (++reset_arrived_ == size_) {
      reset_arrived_ = 0;
      ++reset_generation_;
      aborted_ = false;
      reason_.clear();
      forget();
      changed_.notify_all();
      return;
    }
    if (!changed_.wait_for(lock, family_->timeout,
                           [&] { return reset_generation_ != generation; })) {
      --reset_arrived_;
      throw CommunicatorError(name_of_rank(rank), "", "reset",
                              "the other ranks did not call reset() within the time-out");
    }
  }

 private:
  friend struct RendezvousFamily;

  Rendezvous(std::shared_ptr<RendezvousFamily> family, int size)
      : family_(std::move(family)),
        size_(size),
        posts_(static_cast<std::size_t>(size)),
        here_(static_cast<std::size_t>(size), 0) {}

  void forget() {
    arrived_ = 0;
    ++generation_;
    here_.assign(here_.size(), 0);
  }

  void meet(std::unique_lock<std::mutex>& lock, int rank, const Post& mine) {
    if (aborted_) throw_abort(rank, mine);
    const std::uint64_t generation = generation_;
    here_[static_cast<std::size_t>(rank)] = 1;
    if (++arrived_ == size_) {
      find_disagreement();
      if (aborted_) throw_abort(rank, mine);
      forget();
      lock.unlock();
      changed_.notify_all();
      return;
    }
    const bool woken = changed_.wait_for(lock, family_->timeout,
                                         [&] { return generation_ != generation || aborted_; });
    if (generation_ != generation) return;
    if (!woken) family_->abort_locked(describe_absence(rank, mine));
    throw_abort(rank, mine);
  }

  void find_disagreement() {
    const Post& first = posts_[0];
    for (int r = 1; r < size_; ++r) {
      const Post& other = posts_[static_cast<std::size_t>(r)];
      if (std::string_view(first.operation) == other.operation && first.name == other.name &&
          first.amount == other.amount && first.parts == other.parts) {
        continue;
      }
      family_->abort_locked(
          "ranks disagree: rank " + std::to_string(name_of_rank(0)) + " is in " + describe(first) +
          ", rank " + std::to_string(name_of_rank(r)) + " in " + describe(other) +
          (first.parts == other.parts || first.amount != other.amount ? ""
                                                                      : " made up of other parts"));
      return;
    }
  }

  static std::string describe(const Post& post) {
    return std::string(post.operation) + " of '" + std::string(post.name) + "' (" +
           std::to_string(post.amount) + " bytes)";
  }
  [[noreturn]] void throw_abort(int rank, const Post& mine) const {
    throw CommunicatorError(name_of_rank(rank), mine.name, mine.operation, reason_);
  }
  std::string describe_absence(int rank, const Post& mine) const {
    std::string absent;
    for (int r = 0; r < size_; ++r) {
      if (here_[static_cast<std::size_t>(r)]) continue;
      absent += (absent.empty() ? "" : ", ") + std::to_string(name_of_rank(r));
    }
    return "rank " + std::to_string(name_of_rank(rank)) + " waited " +
           std::to_string(family_->timeout.count()) + " ms in " + describe(mine) + " for rank(s) " +
           absent;
  }

  std::shared_ptr<RendezvousFamily> family_;
  const int size_;
  std::vector<int> names_;
  std::vector<Post> posts_;
  std::vector<char> here_;
  std::condition_variable changed_;
  int arrived_ = 0;
  std::uint64_t generation_ = 0;
  bool aborted_ = false;
  std::string reason_;
  int reset_arrived_ = 0;
  std::uint64_t reset_generation_ = 0;
};

inline void RendezvousFamily::abort_locked(const std::string& why) {
  for (const auto& weak : members) {
    const auto member = weak.lock();
    if (!member || member->aborted_) continue;  // the first reason is the cause
    member->aborted_ = true;
    member->reason_ = why;
    member->changed_.notify_all();
  }
}

}  // namespace tessera::detail
