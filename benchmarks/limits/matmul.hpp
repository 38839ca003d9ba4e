#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "device.hpp"

namespace limits {

/// cuBLASLt and the workspace its algorithms share.
class BlasLt {
 public:
  BlasLt();
  ~BlasLt();
  BlasLt(const BlasLt&) = delete;
  BlasLt& operator=(const BlasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  const DeviceMemory& workspace() const { return workspace_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
};

/// D (m x n) = op(A) (m x k) op(B) (k x n), column-major as in BLAS; op transposes where it says
/// so.
struct MatmulShape {
  long m, n, k;
  bool transpose_a, transpose_b;

  double flops() const { return 2.0 * static_cast<double>(m) * n * k; }
};

enum class Inputs {
  bf16,
  fp8,                   ///< e4m3, scaled per tensor; accumulates in fp32
  fp8_fast_accumulation  ///< the same, with the less exact accumulation of the tensor cores
};

struct MatmulMemory {
  const void *a, *b;
  void* d;                        ///< bf16
  const float* scales = nullptr;  ///< fp8: A's at [0], B's at [4]: each on 16 bytes
};

/// One matrix product and the fastest algorithm for it.
class Matmul {
 public:
  Matmul(const BlasLt& lt, const MatmulShape& shape, Inputs inputs, const MatmulMemory& memory);

  /// Times what the heuristics propose, back to back, then the best again for longer.
  void tune(cudaStream_t stream);

  /// With the tuned algorithm, or before that with the first proposed.
  void run(cudaStream_t stream) const;

  const MatmulShape& shape() const { return shape_; }
  /// Milliseconds as of tune().
  double estimate() const { return estimate_; }
  /// Which algorithm of how many.
  std::string choice() const;

 private:
  /// A type with a name: nvcc 13.0 dies of a vector of cublasLtMatmulAlgo_t.
  struct Algorithm {
    cublasLtMatmulAlgo_t value;
  };

  bool try_run(const Algorithm& algorithm, cudaStream_t stream) const;

  const BlasLt& lt_;
  MatmulShape shape_;
  MatmulMemory memory_;
  // The opaque structures are plain memory; cuBLASLt takes them as pointers to non-const.
  mutable cublasLtMatmulDescOpaque_t operation_;
  mutable cublasLtMatrixLayoutOpaque_t a_, b_, d_;
  std::vector<Algorithm> algorithms_;
  std::size_t chosen_ = 0;
  double estimate_ = 0;
};

/// TFLOP/s of runs that fill `seconds`, after a tenth of that unmeasured.
double sustained_rate(const Matmul& matmul, double seconds, cudaStream_t stream);

}  // namespace limits
