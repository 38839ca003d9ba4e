// How a group over MPI is made.
#pragma once

#include <chrono>

namespace tessera {

/// Options of an Mpi group; channels and splits inherit them.
struct MpiOptions {
  /// The longest that a collective waits for the other ranks.
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

}  // namespace tessera
