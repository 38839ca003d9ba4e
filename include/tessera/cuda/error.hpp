// CUDA's error codes as one clear sentence each.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tessera/error.hpp"

namespace tessera::detail {

inline std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// What the code means for the user of a trainer.
inline std::string explain_cuda(cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  switch (error) {
    case cudaErrorNoDevice:
      return "there is no CUDA device: run where an NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES, "
             "nvidia-smi), or use the Host backend";
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
      if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
        return "there is no NVIDIA driver on this machine: run where an NVIDIA GPU is visible, or "
               "use the Host backend";
      }
      (void)cudaRuntimeGetVersion(&runtime);
      return "the NVIDIA driver (CUDA " + cuda_version_text(driver) +
             ") is older than the CUDA runtime this program was built with (" +
             cuda_version_text(runtime) + "): update the driver, or build with an older toolkit";
    case cudaErrorNoKernelImageForDevice:
      return "this program holds no kernels for the GPU's architecture: build it with an -arch "
             "that "
             "includes the GPU's";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
      return std::string("a kernel of this process faulted (") + cudaGetErrorName(error) +
             "): everything on this GPU is lost; run under compute-sanitizer to find the kernel";
    default: return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  }
}

/// Throws Error, saying what was being done, unless the code is success.
inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // one that is not sticky must not be found again by somebody else
  fail("tessera: CUDA: ", what, ": ", explain_cuda(error));
}

}  // namespace tessera::detail
