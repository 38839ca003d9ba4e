#include "host_platform.hpp"
#include "train_strategies.hpp"

namespace gpt {

void train_fp32(const Options& options, const Text& text, Results& results, Traces& traces) {
  train_with<HostPlatform, tessera::Fp32, float>(options, text, results, traces);
}

}  // namespace gpt
