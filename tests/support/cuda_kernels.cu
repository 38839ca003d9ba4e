// The kernels of the tests that g++ compiles.
#include <tessera/cuda.hpp>

TESSERA_CUDA_INSTANTIATE(tessera::AdamW)
TESSERA_CUDA_INSTANTIATE(tessera::Lion)
TESSERA_CUDA_INSTANTIATE(tessera::Sgd)

// Of the precisions in tests/property/model.hpp.
#define TESSERA_TEST_INSTANTIATE(Optimizer)                                                   \
  TESSERA_CUDA_INSTANTIATE_FOR(Optimizer, tessera::WithReduced<tessera::Bf16, tessera::bf16>) \
  TESSERA_CUDA_INSTANTIATE_FOR(                                                               \
      Optimizer, tessera::SplitMaster<tessera::WithReduced<tessera::Bf16, tessera::bf16>>)    \
  TESSERA_CUDA_INSTANTIATE_FOR(Optimizer,                                                     \
                               tessera::WithMoments<tessera::PureBf16<>, tessera::bf16>)      \
  TESSERA_CUDA_INSTANTIATE_FOR(Optimizer, tessera::WithMoments<tessera::Fp32, tessera::bf16>)
TESSERA_TEST_INSTANTIATE(tessera::AdamW)
TESSERA_TEST_INSTANTIATE(tessera::Lion)
TESSERA_TEST_INSTANTIATE(tessera::Sgd)
