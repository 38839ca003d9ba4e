// The CUDA backend: Shard<..., Cuda>, with tensors in device memory and streams of the device.
//
// In units that nvcc compiles, kernels are made where they are used. For units that g++ or clang
// compiles, one .cu of the program holds
//
//     #include <tessera/cuda.hpp>
//     TESSERA_CUDA_INSTANTIATE(tessera::AdamW)   // the optimizers that the program uses
#pragma once

// Before anything that would fail first, in more words.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error \
    "tessera: device code needs compute capability 8.0 or later: compile with -arch=sm_80 or newer"
#endif

#include "tessera/comm/mesh.hpp"
#include "tessera/cuda/graph.hpp"
#include "tessera/cuda/in_process.hpp"
#include "tessera/cuda/instantiate.hpp"
#include "tessera/cuda/runtime.hpp"
#include "tessera/tessera.hpp"

struct __nv_bfloat16;  // <cuda_bf16.h>, which need not be included

namespace tessera {

template <>
struct ElementTraits<__nv_bfloat16> : detail::ElementOf<DType::bf16> {};

/// Tensors in the memory of a GPU. `Comm` carries collectives: CudaInProcess, or Nccl.
template <class Comm = CudaInProcess>
struct CudaBackend {
  using Runtime = CudaRuntime;
  using Communicator = Comm;
};
using Cuda = CudaBackend<>;

static_assert(Backend<Cuda>);

}  // namespace tessera
