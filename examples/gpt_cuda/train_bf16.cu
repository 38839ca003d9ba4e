#include "../gpt/train_strategies.hpp"
#include "cuda_platform.cuh"

namespace gpt {

void train_bf16(const Options& options, const Text& text, Results& results, Traces& traces) {
  train_with<CudaPlatform, tessera::Bf16, tessera::bf16>(options, text, results, traces);
}

}  // namespace gpt
