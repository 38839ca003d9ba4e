// MPI in this process: begun where nobody has, ended with the process, one call at a time.
#pragma once

#include "tessera/mpi/api.hpp"

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/error.hpp"

namespace tessera::detail {

inline std::string mpi_error_text(int error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "an unknown error";
  return std::string(text, static_cast<std::size_t>(length));
}

/// Streams are threads, so that calls come from several. Each is made with the lock held and none
/// blocks, which is all that MPI_THREAD_SERIALIZED asks for; a program that calls MPI itself beside
/// needs MPI_THREAD_MULTIPLE, which is what is asked for where MPI is begun here.
class MpiSession {
 public:
  static MpiSession& get() {
    static MpiSession session;
    return session;
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  using Lock = std::unique_lock<std::mutex>;
  Lock lock() { return Lock(mutex_); }

  /// A group of this process has failed: it must not wait for the others at its end.
  void note_failure() { failed_ = true; }

 private:
  MpiSession() {
    int begun = 0;
    (void)MPI_Initialized(&begun);
    int level = MPI_THREAD_SINGLE;
    if (begun == 0) {
      const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
      if (error != MPI_SUCCESS) fail("tessera: MPI does not start: ", mpi_error_text(error));
      owned_ = true;
    } else {
      (void)MPI_Query_thread(&level);
    }
    if (level < MPI_THREAD_SERIALIZED) {
      fail(
          "tessera: MPI was started for one thread, and collectives run beside compute on threads "
          "of their own: call MPI_Init_thread with MPI_THREAD_MULTIPLE, or leave it to tessera");
    }
  }
  ~MpiSession() {
    int ended = 0;
    (void)MPI_Finalized(&ended);
    if (!owned_ || ended != 0) return;
    // MPI_Finalize waits for all ranks, of which one may be gone.
    if (failed_) {
      MPI_Abort(MPI_COMM_WORLD, 1);
    } else {
      MPI_Finalize();
    }
  }

  std::mutex mutex_;
  bool owned_ = false;
  bool failed_ = false;
};

/// Throws where an MPI call that is no communication failed.
inline void check_mpi(int error, std::string_view call) {
  if (error != MPI_SUCCESS) fail("tessera: ", call, ": ", mpi_error_text(error));
}

}  // namespace tessera::detail
