// The kernels that the sharded runs launch: their sources are compiled by the host's compiler.
#include <tessera/cuda/instantiate.hpp>
#include <tessera/engine/materialize.hpp>
#include <tessera/tessera.hpp>

#include "weights.hpp"

TESSERA_CUDA_INSTANTIATE(tessera::AdamW)

namespace tessera::detail {
template void launch_for_each(cudaStream_t, std::uint64_t,
                              const engine::SetInPlace<llama::FirstValue, float>&);
template void launch_for_each(cudaStream_t, std::uint64_t,
                              const engine::SetInPlace<llama::FirstValue, bf16>&);
}  // namespace tessera::detail
