#include "train.hpp"
#include "train_sharded.hpp"

namespace llama {

void train_bf16(const Options& options, const TokenFile* file, Ranks* processes, Results& results,
                Traces& traces) {
  train_sharded<tessera::bf16, tessera::Bf16>(options, file, processes, results, traces);
}

}  // namespace llama
