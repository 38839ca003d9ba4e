// exact/rank_sum.hpp on the device: contributions added up in rank order, in fp32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/cuda/elementwise.hpp"
#include "tessera/cuda/launch.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/lanes.hpp"

namespace tessera::detail {

/// The most ranks whose contributions one kernel adds up.
inline constexpr int kSumSources = 64;

/// With s = (((x0 + x1) + x2) + ...) * scale, out[i] becomes s, or out[i] + s with `accumulate`.
/// `sources` is a host array of `ranks` pointers that the device can read; T and O are float or
/// bf16.
template <class T, class O>
TESSERA_CUDA_LAUNCHER void launch_rank_sum(cudaStream_t stream, std::uint64_t n,
                                           const T* const* sources, int ranks, float scale,
                                           bool accumulate, O* out);

#if defined(__CUDACC__)

template <class T>
struct SumSources {
  const T* data[kSumSources];
};

/// Elements a thread adds up at once.
template <class T, class O>
inline constexpr int kSumVector = kVector<In<T>, Out<O>>;

template <bool aligned, class T, class O>
__global__ void __launch_bounds__(kCudaThreads)
    rank_sum_kernel(std::uint64_t n, SumSources<T> sources, int ranks, float scale, bool accumulate,
                    O* out) {
  constexpr int N = kSumVector<T, O>;
  constexpr int kWidth = aligned ? N : 1;
  const std::uint64_t block = blockIdx.x * kRangeBlock;
  const std::uint64_t end = block + kRangeBlock < n ? block + kRangeBlock : n;
  const std::uint64_t whole = block + (end - block) / kWidth * kWidth;
  const Lanes<1> factor = Lanes<1>::splat(scale);
  const auto finish = [&](Lanes<1> sum, std::uint64_t i) {
    const Lanes<1> scaled = sum * factor;
    return accumulate ? Lanes<1>::load(out + i) + scaled : scaled;
  };
  for (std::uint64_t i = block + threadIdx.x * kWidth; i < whole; i += kCudaThreads * kWidth) {
    if constexpr (aligned) {
      Lanes<1> sum[N];
      Lanes<1> next[N];
      VectorAccess<T, N>::load(sources.data[0] + i, sum);
#pragma unroll 4
      for (int rank = 1; rank < ranks; ++rank) {
        VectorAccess<T, N>::load(sources.data[rank] + i, next);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] = sum[k] + next[k];
      }
      if (accumulate) VectorAccess<O, N>::load(out + i, next);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        sum[k] = sum[k] * factor;
        if (accumulate) sum[k] = next[k] + sum[k];
      }
      VectorAccess<O, N>::store(out + i, sum);
    } else {
      Lanes<1> sum = Lanes<1>::load(sources.data[0] + i);
      for (int rank = 1; rank < ranks; ++rank) {
        sum = sum + Lanes<1>::load(sources.data[rank] + i);
      }
      finish(sum, i).store(out + i);
    }
  }
  for (std::uint64_t i = whole + threadIdx.x; i < end; i += kCudaThreads) {
    Lanes<1> sum = Lanes<1>::load(sources.data[0] + i);
    for (int rank = 1; rank < ranks; ++rank) sum = sum + Lanes<1>::load(sources.data[rank] + i);
    finish(sum, i).store(out + i);
  }
}

template <class T, class O>
void launch_rank_sum(cudaStream_t stream, std::uint64_t n, const T* const* sources, int ranks,
                     float scale, bool accumulate, O* out) {
  if (ranks > kSumSources) {
    fail("tessera: CUDA: a sum over ", ranks, " ranks: at most ", kSumSources,
         " are added up in one kernel");
  }
  SumSources<T> all{};
  bool aligned = VectorAccess<O, kSumVector<T, O>>::aligned(out);
  for (int rank = 0; rank < ranks; ++rank) {
    all.data[rank] = sources[rank];
    aligned = aligned && VectorAccess<T, kSumVector<T, O>>::aligned(sources[rank]);
  }
  launch_cuda("a sum in rank order", stream, (n + kRangeBlock - 1) / kRangeBlock, kCudaThreads,
              aligned ? rank_sum_kernel<true, T, O> : rank_sum_kernel<false, T, O>, n, all, ranks,
              scale, accumulate, out);
}

#endif

}  // namespace tessera::detail
