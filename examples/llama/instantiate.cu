// The kernels that the sharded runs launch: their sources are compiled by the host's compiler.
#include <tessera/cuda/instantiate.hpp>
#include <tessera/engine/materialize.hpp>
#include <tessera/tessera.hpp>

#include "precisions.hpp"
#include "weights.hpp"

TESSERA_CUDA_INSTANTIATE(tessera::AdamW)
TESSERA_CUDA_INSTANTIATE_FOR(tessera::AdamW, llama::LeanBf16)
TESSERA_CUDA_INSTANTIATE_FOR(tessera::AdamW, llama::SplitBf16)
TESSERA_CUDA_INSTANTIATE_FOR(tessera::AdamW, llama::SplitBf16Sum32)
TESSERA_CUDA_INSTANTIATE_FOR(tessera::AdamW, llama::AllBf16)

namespace tessera::detail {

template <class Stored>
using SetFirst = engine::SetInPlace<llama::FirstValue, Stored>;
template void launch_for_each(cudaStream_t, std::uint64_t, const SetFirst<engine::Kept>&);
template void launch_for_each(cudaStream_t, std::uint64_t, const SetFirst<engine::Rounded>&);
template void launch_for_each(cudaStream_t, std::uint64_t, const SetFirst<engine::UpperHalf>&);
template void launch_for_each(cudaStream_t, std::uint64_t, const SetFirst<engine::LowerHalf>&);

}  // namespace tessera::detail
