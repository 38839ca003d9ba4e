// Where the model's work goes: a stream, and cuBLAS bound to it.
#pragma once

#include <cstddef>

#include "../gpt/matrix.hpp"
#include "check.hpp"
#include "device_arena.hpp"

namespace gpt::cuda {

/// Several products of one shape; operand i starts `step` floats after operand i - 1.
struct Matrices {
  const float* data;
  std::size_t stride;
  std::size_t step;
  bool transposed = false;
};

inline Matrices transposed(Matrices m) { return {m.data, m.stride, m.step, !m.transposed}; }

/// The same bits in every run: fp32 throughout (no TF32, no emulation), no atomics, a workspace of
/// its own, and so an algorithm that depends on shapes alone.
class Queue {
 public:
  explicit Queue(cudaStream_t stream) : stream_(stream) {
    require(cublasCreate(&blas_), "cublasCreate");
    try {
      require(cublasSetStream(blas_, stream), "cublasSetStream");
      require(cublasSetMathMode(blas_, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
      require(cublasSetAtomicsMode(blas_, CUBLAS_ATOMICS_NOT_ALLOWED), "cublasSetAtomicsMode");
    } catch (...) {
      cublasDestroy(blas_);
      throw;
    }
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() { cublasDestroy(blas_); }

  cudaStream_t stream() const { return stream_; }

  /// cuBLAS would allocate one otherwise. After cublasSetStream, which resets it.
  void carve(DeviceArena& arena) {
    auto* workspace = arena.take<std::byte>(kWorkspace);
    if (workspace == nullptr) return;
    require(cublasSetWorkspace(blas_, workspace, kWorkspace), "cublasSetWorkspace");
  }

  /// c[m, n] = alpha a[m, k] b[k, n] + beta c. With beta 0, c is not read.
  void multiply(std::size_t m, std::size_t n, std::size_t k, float alpha, Matrix a, Matrix b,
                float beta, float* c, std::size_t c_stride) const {
    // cuBLAS stores by columns: what it sees of each matrix is the transposed one, hence b before
    // a.
    require(cublasSgemm(blas_, op(b.transposed), op(a.transposed), integer(n), integer(m),
                        integer(k), &alpha, b.data, integer(b.stride), a.data, integer(a.stride),
                        &beta, c, integer(c_stride)),
            "cublasSgemm");
  }

  /// `count` such products.
  void multiply(std::size_t count, std::size_t m, std::size_t n, std::size_t k, float alpha,
                Matrices a, Matrices b, float* c, std::size_t c_stride, std::size_t c_step) const {
    const float zero = 0.0f;
    require(cublasSgemmStridedBatched(blas_, op(b.transposed), op(a.transposed), integer(n),
                                      integer(m), integer(k), &alpha, b.data, integer(b.stride),
                                      step(b.step), a.data, integer(a.stride), step(a.step), &zero,
                                      c, integer(c_stride), step(c_step), integer(count)),
            "cublasSgemmStridedBatched");
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // as cuBLAS takes on Hopper

  static cublasOperation_t op(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }
  static int integer(std::size_t value) { return static_cast<int>(value); }
  static long long step(std::size_t value) { return static_cast<long long>(value); }

  cudaStream_t stream_;
  cublasHandle_t blas_ = nullptr;
};

}  // namespace gpt::cuda
