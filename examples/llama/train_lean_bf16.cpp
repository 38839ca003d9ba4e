#include "precisions.hpp"
#include "train.hpp"
#include "train_sharded.hpp"

namespace llama {

void train_lean_bf16(const Options& options, const TokenFile* file, Ranks* processes,
                     Results& results, Traces& traces) {
  train_sharded<tessera::bf16, LeanBf16>(options, file, processes, results, traces);
}

}  // namespace llama
