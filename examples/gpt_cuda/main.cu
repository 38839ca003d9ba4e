// Trains a small GPT on bytes of text on GPUs, its training state sharded over in-process ranks,
// which share the GPUs in turn. The flags are those of examples/gpt: see gpt/options.hpp.
#include <cuda_runtime.h>

#include <limits>

#include "../gpt/program.hpp"

namespace {

/// Memory of all GPUs. Where there are none, training will say so: sizes are no reason to refuse.
double device_bytes() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return std::numeric_limits<double>::max();
  double bytes = 0.0;
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    bytes += static_cast<double>(properties.totalGlobalMem);
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const gpt::Machine machine{.program = "gpt_cuda", .bytes = device_bytes(), .tensor_axis = false};
  return gpt::run_program(argc, argv, machine, gpt::train_fp32, gpt::train_bf16);
}
