// doctest's main behind a look for a GPU: 77, which ctest takes as skipped, where there is none.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <tessera/cuda.hpp>

namespace {

bool there_is_a_gpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) (void)cudaGetLastError();
  return found;
}

/// Without a GPU the backend must say so in one sentence, and end.
int check_what_is_said() {
  if (there_is_a_gpu()) return 0;
  try {
    const tessera::CudaRuntime runtime;
  } catch (const tessera::Error& error) {
    std::printf("%s\n", error.what());
    const std::string said = error.what();
    const bool clear = said.find("there is no NVIDIA driver") != std::string::npos ||
                       said.find("there is no CUDA device") != std::string::npos ||
                       said.find("update the driver") != std::string::npos;
    return clear ? 0 : 1;
  }
  std::printf("a runtime was made without a GPU\n");
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--no-skip-without-gpu") == 0) return check_what_is_said();
  if (!there_is_a_gpu()) {
    std::printf("there is no GPU: nothing was tested\n");
    return std::getenv("TESSERA_GPU_REQUIRED") != nullptr ? 1 : 77;
  }
  return doctest::Context(argc, argv).run();
}
