// One NCCL communicator of this rank and the family that is aborted together with it.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/error.hpp"
#include "tessera/nccl/detour.hpp"
#include "tessera/nccl/options.hpp"
#include "tessera/nccl/peer_memory.hpp"

namespace tessera::detail {

struct NcclState;
class NumberExchange;

/// This rank's communicators that come from one another: a group, its channels, its splits.
class NcclFamily {
 public:
  /// From here on an abort reaches the member. False where there has been one.
  bool add(const std::shared_ptr<NcclState>& member);
  /// Aborts every member; the first reason is kept. From any thread.
  void abort(const std::string& why);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<NcclState>> members_;
  std::string reason_;
  std::atomic<bool> aborted_{false};
};

/// A communicator and what goes with it. Every NCCL call on `comm` is made with `mutex` held, which
/// waits for other ranks let go of in between: an abort from another thread gets in there.
struct NcclState {
  using Lock = std::unique_lock<std::timed_mutex>;
  using Clock = std::chrono::steady_clock;

  std::timed_mutex mutex;
  ncclComm_t comm = nullptr;  ///< null: one rank without NCCL, or aborted
  bool owned = true;          ///< false: the user's, which is never aborted or destroyed here
  bool ready = false;         ///< made without an error
  bool registered = false;    ///< in the family: an abort clears `comm`
  int rank = 0;
  int size = 1;
  int device = -1;  ///< -1: not known, and not checked
  NcclOptions options;
  std::shared_ptr<NcclFamily> family = std::make_shared<NcclFamily>();
  std::vector<ncclWindow_t> windows;
  bool has_reduced = false;
  std::string note;     ///< why there is no window, or no memory that peers have opened
  std::string chosen;   ///< why the transport is what it is; empty, or ends in "; "
  bool copies = false;  ///< this channel's memory is one that the peers have opened
  std::shared_ptr<PeerMemory> peers;  ///< the group's and its channels'
  std::shared_ptr<NumberExchange> numbers;
  int channel = -1;  ///< its number among them; negative: none
  NcclDetour detour;
  std::mutex counts_mutex;
  CollectiveCounts counts;

  NcclState() = default;
  NcclState(const NcclState&) = delete;
  NcclState& operator=(const NcclState&) = delete;
  ~NcclState() { close(); }

  /// Whether collectives go through NCCL. A one-rank communicator that the user gave has one and
  /// does not use it.
  bool uses_nccl() const { return size > 1 || options.force_at_one_rank; }

  [[noreturn]] void fail_call(CollectiveTag tag, std::string_view problem) const {
    throw CommunicatorError(rank, tag.name, name_of(tag.kind), problem);
  }
  void require_usable(CollectiveTag tag) const {
    if (family->aborted()) fail_call(tag, family->reason());
  }

  /// A sentence on an NCCL result. NCCL's last error is this process's, not this call's.
  std::string describe(ncclResult_t result, std::string_view call) const {
    std::string text = concat(call, ": ", ncclGetErrorString(result));
    const char* last = comm ? ncclGetLastError(comm) : nullptr;
    if (last && *last) text += concat(" (NCCL says: ", last, ")");
    return text;
  }

  /// Throws what NCCL found wrong since the last call.
  void check_async(CollectiveTag tag) const {
    if (!comm) return;
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
    if (result != ncclSuccess) fail_call(tag, describe(result, "ncclCommGetAsyncError"));
    if (state != ncclSuccess && state != ncclInProgress) {
      fail_call(tag, describe(state, "a communication failed"));
    }
  }

  /// Waits until what was asked of `comm` is no longer in progress: its result, or ncclInProgress
  /// at the deadline, or ncclInvalidUsage where there was an abort.
  ncclResult_t settle(Lock& lock, Clock::time_point deadline) const {
    for (int turn = 0;; ++turn) {
      const bool late = Clock::now() >= deadline;
      if (!comm) return ncclInvalidUsage;
      if (family->aborted()) {
        // NCCL may still be at work on what was asked, until the abort has cleared `comm`.
        if (late || !registered || !owned) return ncclInvalidUsage;
      } else {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
        if (result != ncclSuccess) return result;
        if (state != ncclInProgress) return state;
        if (late) return ncclInProgress;
      }
      lock.unlock();
      if (turn < 256) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(turn < 4096 ? 20 : 500));
      }
      lock.lock();
    }
  }

  /// Ends a call that gave `result`: waits for it, and throws where it failed, was aborted, or took
  /// too long, which aborts the family.
  void finish(Lock& lock, ncclResult_t result, CollectiveTag tag, std::string_view call) {
    finish(lock, result, call, [&](std::string_view problem) { fail_call(tag, problem); });
  }
  template <class Fail>
  void finish(Lock& lock, ncclResult_t result, std::string_view call, Fail&& throw_problem) {
    if (result == ncclSuccess || result == ncclInProgress) {
      result = settle(lock, Clock::now() + options.timeout);
    }
    if (result == ncclSuccess && !family->aborted()) return;
    std::string problem = result == ncclInProgress
                              ? concat(call, " did not end within ", options.timeout.count(),
                                       " ms: another rank does not take part, or cannot be reached")
                              : describe(result, call);
    lock.unlock();
    if (family->aborted()) problem = family->reason();
    if (result == ncclInProgress) family->abort(concat("rank ", rank, ": ", problem));
    throw_problem(problem);
  }

  /// `bytes`: received from each of the others.
  void count(CollectiveKind kind, std::uint64_t bytes) {
    count_received(kind, bytes * static_cast<std::uint64_t>(size - 1));
  }
  void count_received(CollectiveKind kind, std::uint64_t bytes) {
    if (!uses_nccl()) return;
    const std::lock_guard lock(counts_mutex);
    ++counts[kind].count;
    counts[kind].bytes += bytes;
  }

 private:
  // Destructors neither throw nor hang: what does not end in time is aborted.
  void close() noexcept {
    if (!comm || !owned) return;
    Lock lock(mutex);
    registered = false;
    bool quiet = false;
    if (ready && !family->aborted()) {
      const ncclResult_t result = ncclCommFinalize(comm);
      const auto patience =
          std::min<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(30));
      quiet = (result == ncclSuccess || result == ncclInProgress) &&
              settle(lock, Clock::now() + patience) == ncclSuccess;
    }
    quiet ? ncclCommDestroy(comm) : ncclCommAbort(comm);
    comm = nullptr;
  }
};

inline bool NcclFamily::add(const std::shared_ptr<NcclState>& member) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return false;
  std::erase_if(members_, [](const auto& weak) { return weak.expired(); });
  members_.push_back(member);
  member->registered = true;
  return true;
}

inline void NcclFamily::abort(const std::string& why) {
  std::vector<std::shared_ptr<NcclState>> members;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;  // the first reason is the cause
    reason_ = why;
    aborted_.store(true, std::memory_order_release);
    for (const auto& weak : members_) {
      if (auto member = weak.lock()) members.push_back(std::move(member));
    }
  }
  // One group: every communicator is told to end before any is waited for. Aborted one after the
  // other they can wait for each other.
  std::vector<NcclState::Lock> locks;
  ncclGroupStart();
  for (const auto& member : members) {
    // A thread that is inside a blocking call keeps the lock; NCCL lets an abort reach it there.
    locks.emplace_back(member->mutex, std::chrono::seconds(1));
    if (member->comm && member->owned) ncclCommAbort(member->comm);
  }
  ncclGroupEnd();
  for (const auto& member : members) {
    if (member->owned) member->comm = nullptr;
  }
  locks.clear();
  for (const auto& member : members) {
    if (member->peers) member->peers->release_waits();
  }
}

}  // namespace tessera::detail
