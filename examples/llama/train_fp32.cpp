#include "train.hpp"
#include "train_sharded.hpp"

namespace llama {

void train_fp32(const Options& options, const TokenFile* file, Ranks* processes, Results& results,
                Traces& traces) {
  train_sharded<float, tessera::Fp32>(options, file, processes, results, traces);
}

}  // namespace llama
