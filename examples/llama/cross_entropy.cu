#include <cmath>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

// A multiprocessor has room for two such blocks at the most. Rows are read twice: fewer at a time
// means that more of them are still in the second-level cache (a row of 128,256 bf16 is 250 KiB).
constexpr std::size_t kThreads = 1024;

/// The greatest value so far and the sum of exponentials relative to it.
struct Exponentials {
  float most = -INFINITY;
  float sum = 0;

  __device__ void add(float value) {
    if (value > most) {
      sum *= __expf(most - value);
      most = value;
    }
    sum += __expf(value - most);
  }
  __device__ void add(const Exponentials& other) {
    if (other.sum == 0) return;
    const float greater = fmaxf(most, other.most);
    sum = sum * __expf(most - greater) + other.sum * __expf(other.most - greater);
    most = greater;
  }
};

__device__ Exponentials over_warp(Exponentials own) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Exponentials other{__shfl_xor_sync(0xffffffffu, own.most, distance),
                             __shfl_xor_sync(0xffffffffu, own.sum, distance)};
    own.add(other);
  }
  return own;
}

template <class T, bool packed>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_kernel(std::size_t vocabulary, const std::int32_t* targets, float scale,
                         T* logits, float* losses) {
  __shared__ Exponentials shared[kWarp];
  const std::size_t row = blockIdx.x;
  T* const values = logits + row * vocabulary;
  const std::int32_t target = targets[row];
  constexpr std::size_t kStep = packed ? kPack : 1;

  Exponentials own;
  if constexpr (packed) {
    for (std::size_t i = threadIdx.x * kStep; i < vocabulary; i += kThreads * kStep) {
      const Pack<T> v = Pack<T>::load(values + i);
      float most = v[0];
#pragma unroll
      for (int k = 1; k < kPack; ++k) most = fmaxf(most, v[k]);
      if (most > own.most) {
        own.sum *= __expf(own.most - most);
        own.most = most;
      }
#pragma unroll
      for (int k = 0; k < kPack; ++k) own.sum += __expf(v[k] - own.most);
    }
  } else {
    for (std::size_t i = threadIdx.x; i < vocabulary; i += kThreads) own.add(widened(values[i]));
  }
  own = over_warp(own);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = own;
  __syncthreads();
  const Exponentials all = over_warp(shared[threadIdx.x % kWarp]);
  if (threadIdx.x == 0) {
    losses[row] = target < 0 ? 0.0f : all.most + logf(all.sum) - widened(values[target]);
  }
  if (scale == 0.0f) return;
  __syncthreads();  // the target's logit has been read
  const float each = target < 0 ? 0.0f : scale / all.sum;
  const float at_target = target < 0 ? 0.0f : scale;
  // From the end, where the first pass has just been.
  const std::size_t steps = (vocabulary + kThreads * kStep - 1) / (kThreads * kStep);
  for (std::size_t step = steps; step-- > 0;) {
    const std::size_t i = (step * kThreads + threadIdx.x) * kStep;
    if (i >= vocabulary) continue;
    if constexpr (packed) {
      Pack<T> v = Pack<T>::load(values + i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        v[k] = __expf(v[k] - all.most) * each;
        if (static_cast<std::int32_t>(i) + k == target) v[k] -= at_target;
      }
      v.store(values + i);
    } else {
      float v = __expf(widened(values[i]) - all.most) * each;
      if (static_cast<std::int32_t>(i) == target) v -= at_target;
      values[i] = narrowed<T>(v);
    }
  }
}

__global__ void add_losses_kernel(std::size_t rows, const float* losses, double* total) {
  __shared__ double shared[kThreads];
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < rows; i += kThreads) sum += static_cast<double>(losses[i]);
  shared[threadIdx.x] = sum;
  for (std::size_t half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *total += shared[0];
}

}  // namespace

template <class T>
void cross_entropy(cudaStream_t stream, std::size_t rows, std::size_t vocabulary,
                   const std::int32_t* targets, float scale, T* logits, float* losses) {
  launch("cross_entropy", stream,
         vocabulary % kPack == 0 ? cross_entropy_kernel<T, true> : cross_entropy_kernel<T, false>,
         rows, kThreads, vocabulary, targets, scale, logits, losses);
}

void add_losses(cudaStream_t stream, std::size_t rows, const float* losses, double* total) {
  launch("add_losses", stream, add_losses_kernel, 1, kThreads, rows, losses, total);
}

#define INSTANTIATE(T)                                                                            \
  template void cross_entropy(cudaStream_t, std::size_t, std::size_t, const std::int32_t*, float, \
                              T*, float*);
LLAMA_FOR_ELEMENTS(INSTANTIATE)

}  // namespace llama
