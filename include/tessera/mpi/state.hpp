// One MPI communicator of this rank and the family that is aborted together with it.
#pragma once

#include "tessera/mpi/api.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/error.hpp"
#include "tessera/mpi/options.hpp"
#include "tessera/mpi/session.hpp"

namespace tessera::detail {

/// A rank's communicators that come from one another: a group, its channels, its splits. A rank
/// that aborts tells the others of the group, which look for that while they wait.
class MpiFamily {
 public:
  /// `notices`: a communicator over the group that carries nothing else. `parent`: of the group
  /// that this one was split from, which an abort ends too, or null.
  MpiFamily(MPI_Comm notices, int rank, int size, std::shared_ptr<MpiFamily> parent)
      : notices_(notices), rank_(rank), size_(size), parent_(std::move(parent)) {}
  MpiFamily(const MpiFamily&) = delete;
  MpiFamily& operator=(const MpiFamily&) = delete;
  ~MpiFamily() {
    if (aborted()) return;  // messages may still be under way
    const MpiSession::Lock lock = MpiSession::get().lock();
    (void)MPI_Comm_free(&notices_);
  }

  bool aborted() const {
    return aborted_.load(std::memory_order_acquire) || (parent_ && parent_->aborted());
  }
  std::string reason() const {
    if (!aborted_.load(std::memory_order_acquire) && parent_) return parent_->reason();
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  /// From any thread. The first reason is kept.
  void abort(const std::string& why) {
    if (parent_) parent_->abort(why);
    if (!keep(why)) return;
    const MpiSession::Lock lock = MpiSession::get().lock();
    std::memcpy(sent_.data(), why.data(), std::min(why.size(), sent_.size() - 1));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      // Never completed: the process, or the group, is about to end.
      MPI_Request request = MPI_REQUEST_NULL;
      (void)MPI_Isend(sent_.data(), static_cast<int>(sent_.size()), MPI_CHAR, peer, 0, notices_,
                      &request);
      if (request != MPI_REQUEST_NULL) (void)MPI_Request_free(&request);
    }
  }
  /// Whether another rank has said that it aborts. With the session's lock held.
  void look() {
    if (aborted()) return;
    if (parent_) parent_->look();
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, notices_, &there, &status) != MPI_SUCCESS || there == 0) {
      return;
    }
    std::array<char, kNotice> text{};
    if (MPI_Recv(text.data(), static_cast<int>(text.size()), MPI_CHAR, status.MPI_SOURCE, 0,
                 notices_, MPI_STATUS_IGNORE) == MPI_SUCCESS) {
      text.back() = 0;
      keep(text.data());
    }
  }

 private:
  static constexpr std::size_t kNotice = 512;

  bool keep(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_acquire)) return false;
    reason_ = why;
    aborted_.store(true, std::memory_order_release);
    MpiSession::get().note_failure();
    return true;
  }

  MPI_Comm notices_;
  int rank_;
  int size_;
  std::shared_ptr<MpiFamily> parent_;
  mutable std::mutex mutex_;
  std::string reason_;
  std::atomic<bool> aborted_{false};
  std::array<char, kNotice> sent_{};
};

struct MpiState {
  MPI_Comm comm = MPI_COMM_NULL;  ///< this library's own duplicate; null: one rank without MPI
  int rank = 0;
  int size = 1;
  std::vector<int> job_ranks{0};  ///< the ranks' numbers among all of the job, for messages
  MpiOptions options;
  std::shared_ptr<MpiFamily> family;
  mutable std::mutex counts_mutex;
  CollectiveCounts counts;

  MpiState() = default;
  MpiState(const MpiState&) = delete;
  MpiState& operator=(const MpiState&) = delete;
  ~MpiState() {
    if (comm == MPI_COMM_NULL || family->aborted()) return;
    const MpiSession::Lock lock = MpiSession::get().lock();
    int ended = 0;
    if (MPI_Finalized(&ended) == MPI_SUCCESS && ended == 0) (void)MPI_Comm_free(&comm);
  }

  bool aborted() const { return family && family->aborted(); }
  int job_rank(int of) const { return job_ranks[static_cast<std::size_t>(of)]; }
  [[noreturn]] void fail_call(CollectiveTag tag, std::string_view problem) const {
    throw CommunicatorError(job_rank(rank), tag.name, name_of(tag.kind), problem);
  }
  void require_usable(CollectiveTag tag) const {
    if (aborted()) fail_call(tag, family->reason());
  }
  /// `bytes`: received from all the others together.
  void count(CollectiveKind kind, std::uint64_t bytes) {
    const std::lock_guard lock(counts_mutex);
    ++counts[kind].count;
    counts[kind].bytes += bytes;
  }
};

}  // namespace tessera::detail
