// The CUDA backend over NCCL: CudaNccl, and its communicator Nccl. Needs CUDA and NCCL 2.28 or
// later; link with -lnccl.
#pragma once

#include "tessera/cuda.hpp"
#include "tessera/nccl/communicator.hpp"

namespace tessera {

/// Tensors on one CUDA device a rank, collectives by NCCL.
using CudaNccl = CudaBackend<Nccl>;

static_assert(Backend<CudaNccl>);

}  // namespace tessera
