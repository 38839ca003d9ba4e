#include "host_platform.hpp"
#include "train_strategies.hpp"

namespace gpt {

void train_bf16(const Options& options, const Text& text, Results& results, Traces& traces) {
  train_with<HostPlatform, tessera::Bf16, tessera::bf16>(options, text, results, traces);
}

}  // namespace gpt
