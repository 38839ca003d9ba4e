// How groups over MPI come to be: from the world, from the user's communicator, from one another.
#pragma once

#include "tessera/mpi/api.hpp"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

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

inline std::shared_ptr<MpiState> open_mpi(MPI_Comm comm, const MpiOptions& options) {
  MpiSession& session = MpiSession::get();
  auto state = std::make_shared<MpiState>();
  state->options = options;
  state->options.timeout = checked_timeout(options.timeout, "an MPI group");
  {
    const MpiSession::Lock lock = session.lock();
    check_mpi(MPI_Comm_rank(comm, &state->rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm, &state->size), "MPI_Comm_size");
  }
  const auto timeout = state->options.timeout;
  state->family = std::make_shared<MpiFamily>(
      duplicate(comm, timeout, state->rank, "making the group"), state->rank, state->size);
  state->comm = duplicate(comm, timeout, state->rank, "making the group");
  return state;
}

inline std::shared_ptr<MpiState> open_mpi_channel(const MpiState& parent) {
  auto state = std::make_shared<MpiState>();
  state->options = parent.options;
  state->rank = parent.rank;
  state->size = parent.size;
  state->family = parent.family;
  if (parent.comm == MPI_COMM_NULL) return state;
  if (parent.aborted()) {
    throw CommunicatorError(parent.rank, "", "making a channel", parent.family->reason());
  }
  state->comm = duplicate(parent.comm, parent.options.timeout, parent.rank, "making a channel");
  return state;
}

/// A split has notices of its own: its ranks are others.
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
  std::shared_ptr<MpiState> state = open_mpi(made, parent.options);
  const MpiSession::Lock lock = MpiSession::get().lock();
  (void)MPI_Comm_free(&made);
  return state;
}

}  // namespace tessera::detail
