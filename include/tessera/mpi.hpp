// Ranks over MPI: HostMpi, and its communicator Mpi. Needs any MPI 3.1 or later; compile and link
// with mpicxx, start with mpirun.
#pragma once

#include "tessera/mpi/communicator.hpp"
#include "tessera/tessera.hpp"

namespace tessera {

/// Tensors in the processes' memory, collectives over MPI.
using HostMpi = HostBackend<Mpi>;

static_assert(Backend<HostMpi>);

}  // namespace tessera
