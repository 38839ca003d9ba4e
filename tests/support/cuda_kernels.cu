// The kernels of the tests that g++ compiles.
#include <tessera/cuda.hpp>

TESSERA_CUDA_INSTANTIATE(tessera::AdamW)
TESSERA_CUDA_INSTANTIATE(tessera::Lion)
TESSERA_CUDA_INSTANTIATE(tessera::Sgd)
