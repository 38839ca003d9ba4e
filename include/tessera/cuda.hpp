// The CUDA backend: Shard<..., Cuda>, with tensors in device memory and streams of the device.
//
// In units that nvcc compiles, kernels are made where they are used. For units that g++ or clang
// compiles, one .cu of the program holds
//
//     #include <tessera/cuda.hpp>
//     TESSERA_CUDA_INSTANTIATE(tessera::AdamW)   // the optimizers that the program uses
#pragma once

#include "tessera/comm/mesh.hpp"
#include "tessera/cuda/graph.hpp"
#include "tessera/cuda/in_process.hpp"
#include "tessera/cuda/instantiate.hpp"
#include "tessera/cuda/runtime.hpp"
#include "tessera/tessera.hpp"

namespace tessera {

/// Tensors in the memory of a GPU. `Comm` carries collectives: CudaInProcess, or Nccl.
template <class Comm = CudaInProcess>
struct CudaBackend {
  using Runtime = CudaRuntime;
  using Communicator = Comm;
};
using Cuda = CudaBackend<>;

static_assert(Backend<Cuda>);

}  // namespace tessera
