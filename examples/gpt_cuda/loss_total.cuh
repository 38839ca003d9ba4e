// The loss as it adds up on the device, and its one way back to the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "../gpt/loss_sum.hpp"
#include "../gpt/token.hpp"
#include "launch.cuh"
#include "readback.hpp"

namespace gpt::cuda {

inline constexpr unsigned kLossThreads = 256;

/// One block, so that the order of the sum is a matter of the number of rows alone: a thread adds
/// every 256th row, then halves are folded.
static __global__ void add_losses_kernel(std::size_t rows, const double* losses, double* total) {
  __shared__ double sums[kLossThreads];
  double sum = 0.0;
  for (std::size_t row = threadIdx.x; row < rows; row += kLossThreads) sum += losses[row];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = kLossThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total += sums[0];
}

class LossTotal {
 public:
  explicit LossTotal(cudaStream_t stream) : stream_(stream), readback_(1) {}

  void carve(DeviceArena& arena, std::size_t most_rows) {
    rows_ = arena.take<double>(most_rows);
    total_ = arena.take<double>(1);
    if (total_ != nullptr) clear();
  }

  /// Where cross_entropy shall write the loss of each row.
  double* rows() const { return rows_; }

  /// Adds them to the total. How many of the targets count is known on the host.
  void add(std::size_t rows, const Token* host_targets) {
    launch(stream_, add_losses_kernel, dim3(1), dim3(kLossThreads), rows, rows_, total_);
    count_ +=
        rows - static_cast<std::size_t>(std::count(host_targets, host_targets + rows, kIgnored));
  }

  /// What has been added since the last call. Waits for the stream.
  LossSum take() {
    const LossSum loss{*readback_(stream_, total_, 1), std::exchange(count_, 0)};
    clear();
    return loss;
  }

 private:
  void clear() const {
    require(cudaMemsetAsync(total_, 0, sizeof(double), stream_), "clearing the loss");
  }

  cudaStream_t stream_;
  Readback<double> readback_;
  std::size_t count_ = 0;
  double* rows_ = nullptr;
  double* total_ = nullptr;
};

}  // namespace gpt::cuda
