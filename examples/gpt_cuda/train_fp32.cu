#include "../gpt/train_strategies.hpp"
#include "cuda_platform.cuh"

namespace gpt {

void train_fp32(const Options& options, const Text& text, Results& results, Traces& traces) {
  train_with<CudaPlatform, tessera::Fp32, float>(options, text, results, traces);
}

}  // namespace gpt
