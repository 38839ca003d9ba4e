// Messages between ranks that are under way together, and the wait for them.
#pragma once

#include "tessera/mpi/api.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tessera/mpi/state.hpp"

namespace tessera::detail {

/// Sends and receives of one collective. MPI counts in int: longer ranges go in several messages,
/// which both sides cut alike.
class MpiTransfer {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

  /// `tag` tells apart what is on the communicator at a time: collectives of the streams, and
  /// messages of the caller's thread.
  MpiTransfer(MpiState& state, CollectiveTag what, int tag)
      : state_(state), what_(what), tag_(tag) {}
  MpiTransfer(const MpiTransfer&) = delete;
  MpiTransfer& operator=(const MpiTransfer&) = delete;
  /// After a failure nothing may arrive any more in memory that is given back. What is being sent
  /// cannot be called back: a peer that takes part after all may find other bytes.
  ~MpiTransfer() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      const MpiSession::Lock lock = MpiSession::get().lock();
      if (expected_[i] > 0) {
        (void)MPI_Cancel(&requests_[i]);
        (void)MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);  // of a cancelled receive: at once
      } else {
        (void)MPI_Request_free(&requests_[i]);
      }
    }
  }

  void send(int to, const void* data, std::uint64_t bytes) {
    each_part(bytes, [&](std::uint64_t at, int count) {
      post(to, 0, [&](MPI_Request* request) {
        return MPI_Isend(static_cast<const std::byte*>(data) + at, count, MPI_BYTE, to, tag_,
                         state_.comm, request);
      });
    });
  }
  void receive(int from, void* data, std::uint64_t bytes) {
    each_part(bytes, [&](std::uint64_t at, int count) {
      post(from, count, [&](MPI_Request* request) {
        return MPI_Irecv(static_cast<std::byte*>(data) + at, count, MPI_BYTE, from, tag_,
                         state_.comm, request);
      });
    });
  }

  /// Until all have ended. Throws where the group was aborted, a rank does not come within the
  /// time-out, or it sent something else than was expected: ranks that disagree.
  void wait() {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    std::size_t left = requests_.size();
    std::vector<int> ended(left);
    std::vector<MPI_Status> statuses(left);
    while (left > 0) {
      int count = 0;
      int error = MPI_SUCCESS;
      {
        const MpiSession::Lock lock = MpiSession::get().lock();
        error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                             ended.data(), statuses.data());
        state_.family->look();
      }
      if (count == MPI_UNDEFINED) break;
      for (int i = 0; i < count; ++i) {
        finish(static_cast<std::size_t>(ended[static_cast<std::size_t>(i)]),
               statuses[static_cast<std::size_t>(i)], error);
        --left;
      }
      if (left == 0) break;
      state_.require_usable(what_);
      const auto waited = Clock::now() - begin;
      if (waited >= state_.options.timeout) give_up();
      if (count > 0) continue;
      if (waited < std::chrono::microseconds(100)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(
            std::chrono::microseconds(waited < std::chrono::milliseconds(5) ? 20 : 200));
      }
    }
    requests_.clear();
    peers_.clear();
    expected_.clear();
  }

 private:
  template <class Part>
  static void each_part(std::uint64_t bytes, Part&& part) {
    for (std::uint64_t at = 0; at < bytes; at += kMostBytes) {
      part(at, static_cast<int>(std::min(kMostBytes, bytes - at)));
    }
  }
  template <class Call>
  void post(int peer, int expected, Call&& call) {
    state_.require_usable(what_);
    MPI_Request request = MPI_REQUEST_NULL;
    int error = MPI_SUCCESS;
    {
      const MpiSession::Lock lock = MpiSession::get().lock();
      error = call(&request);
    }
    if (error != MPI_SUCCESS) break_off(peer, mpi_error_text(error));
    requests_.push_back(request);
    peers_.push_back(peer);
    expected_.push_back(expected);
  }

  void finish(std::size_t index, const MPI_Status& status, int error) {
    if (error == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      break_off(peers_[index], mpi_error_text(status.MPI_ERROR));
    }
    if (expected_[index] == 0) return;
    int received = 0;
    (void)MPI_Get_count(&status, MPI_BYTE, &received);
    if (received != expected_[index]) {
      break_off(peers_[index], concat("it sent ", received, " bytes where ", expected_[index],
                                      " were expected: the ranks make different calls"));
    }
  }

  // Every rank is told, so that none waits for this one.
  [[noreturn]] void break_off(int peer, const std::string& problem) {
    const std::string text = concat("rank ", state_.job_rank(peer), ": ", problem);
    state_.family->abort(concat("rank ", state_.job_rank(state_.rank), ", ", name_of(what_.kind),
                                what_.name.empty() ? "" : " of unit '", what_.name,
                                what_.name.empty() ? "" : "'", ": ", text));
    state_.fail_call(what_, text);
  }
  [[noreturn]] void give_up() {
    std::string missing;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      const std::string one = concat("rank ", state_.job_rank(peers_[i]),
                                     expected_[i] > 0 ? " has not sent" : " has not received");
      if (missing.find(one) == std::string::npos) missing += (missing.empty() ? "" : ", ") + one;
    }
    const std::string text =
        concat("it did not end within ", state_.options.timeout.count(), " ms: ", missing);
    state_.family->abort(concat("rank ", state_.job_rank(state_.rank), ": ", text));
    state_.fail_call(what_, text);
  }

  MpiState& state_;
  CollectiveTag what_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  std::vector<int> expected_;  ///< bytes to receive; 0: a send
};

}  // namespace tessera::detail
