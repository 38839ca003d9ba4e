// How groups over MPI come to be: from the world, from the user's communicator, from one another.
#pragma once

#include "tessera/mpi/api.hpp"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/timeout.hpp"
#include "tessera/mpi/state.hpp"

namespace tessera::detail {

/// Waits for a request of a collective that makes a communicator, without keeping the lock: other
/// streams go on meanwhile.
inline void await_made(MPI_Request& request, std::chrono::milliseconds timeout, int rank,
                       const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    int done = 0;
    {
      const MpiSession::Lock lock = MpiSession::get().lock();
      const int error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (error != MPI_SUCCESS) throw CommunicatorError(rank, "", what, mpi_error_text(error));
    }
    if (done != 0) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      MpiSession::get().note_failure();
      throw CommunicatorError(rank, "", what,
                              concat("it did not end within ", timeout.count(),
                                     " ms: another rank does not take part"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// A communicator of its own over the same ranks, whose errors come back as codes. Collective.
inline MPI_Comm duplicate(MPI_Comm comm, std::chrono::milliseconds timeout, int rank,
                          const char* what) {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const MpiSession::Lock lock = MpiSession::get().lock();
    check_mpi(MPI_Comm_idup(comm, &made, &request), "MPI_Comm_idup");
  }
  await_made(request, timeout, rank, what);
  const MpiSession::Lock lock = MpiSession::get().lock();
  check_mpi(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return made;
}

/// The numbers that mpirun gave the ranks of a communicator.
inline std::vector<int> job_ranks_of(MPI_Comm comm, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) ranks[static_cast<std::size_t>(r)] = r;
  std::vector<int> in_job(ranks);
  const MpiSession::Lock lock = MpiSession::get().lock();
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group job = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm, &group), "MPI_Comm_group");
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &job), "MPI_Comm_group");
  check_mpi(MPI_Group_translate_ranks(group, size, ranks.data(), job, in_job.data()),
            "MPI_Group_translate_ranks");
  (void)MPI_Group_free(&group);
  (void)MPI_Group_free(&job);
  // Of another job's ranks, which joined this one, only the place in the group is known.
  for (std::size_t r = 0; r < in_job.size(); ++r) {
    if (in_job[r] == MPI_UNDEFINED) in_job[r] = static_cast<int>(r);
  }
  return in_job;
}

inline std::shared_ptr<MpiState> open_mpi(MPI_Comm comm, const MpiOptions& options,
                                          std::shared_ptr<MpiFamily> parent = nullptr) {
  MpiSession& session = MpiSession::get();
  auto state = std::make_shared<MpiState>();
  state->options = options;
  state->options.timeout = checked_timeout(options.timeout, "an MPI group");
  {
    const MpiSession::Lock lock = session.lock();
    check_mpi(MPI_Comm_rank(comm, &state->rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm, &state->size), "MPI_Comm_size");
  }
  state->job_ranks = job_ranks_of(comm, state->size);
  const auto timeout = state->options.timeout;
  state->family =
      std::make_shared<MpiFamily>(duplicate(comm, timeout, state->rank, "making the group"),
                                  state->rank, state->size, std::move(parent));
  state->comm = duplicate(comm, timeout, state->rank, "making the group");
  return state;
}

inline std::shared_ptr<MpiState> open_mpi_channel(const MpiState& parent) {
  auto state = std::make_shared<MpiState>();
  state->options = parent.options;
  state->rank = parent.rank;
  state->size = parent.size;
  state->job_ranks = parent.job_ranks;
  state->family = parent.family;
  if (parent.comm == MPI_COMM_NULL) return state;
  if (parent.aborted()) {
    throw CommunicatorError(parent.rank, "", "making a channel", parent.family->reason());
  }
  state->comm = duplicate(parent.comm, parent.options.timeout, parent.rank, "making a channel");
  return state;
}

/// A split has notices of its own, since its ranks are others, and passes an abort on to the group
/// that it comes from.
inline std::shared_ptr<MpiState> open_mpi_split(const MpiState& parent, int color, int key) {
  if (color < 0) fail("tessera: split was given the color ", color, ", but it must be 0 or more");
  if (parent.comm == MPI_COMM_NULL) {
    auto state = std::make_shared<MpiState>();
    state->options = parent.options;
    return state;
  }
  if (parent.aborted()) {
    throw CommunicatorError(parent.rank, "", "splitting the group", parent.family->reason());
  }
  MPI_Comm made = MPI_COMM_NULL;
  {
    const MpiSession::Lock lock = MpiSession::get().lock();
    check_mpi(MPI_Comm_split(parent.comm, color, key, &made), "MPI_Comm_split");
  }
  std::shared_ptr<MpiState> state = open_mpi(made, parent.options, parent.family);
  const MpiSession::Lock lock = MpiSession::get().lock();
  (void)MPI_Comm_free(&made);
  return state;
}

}  // namespace tessera::detail
