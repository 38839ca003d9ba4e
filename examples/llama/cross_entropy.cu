#include <algorithm>
#include <type_traits>
#include <utility>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

constexpr std::size_t kThreads = 1024;

/// exp(value - most): __expf without its care for denormal results, which costs as much again.
__device__ float exp_below(float value, float most) {
  constexpr float kLog2e = 1.44269504f;
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"((value - most) * kLog2e));
  return result;
}

/// The greatest value so far and the sum of exponentials relative to it.
struct Exponentials {
  float most = -1e30f;  // not infinity, whose difference from a logit of -infinity is not a number
  float sum = 0;

  template <int count>
  __device__ void add(const float (&values)[count]) {
    float greatest = values[0];
#pragma unroll
    for (int i = 1; i < count; ++i) greatest = fmaxf(greatest, values[i]);
    if (greatest > most) {
      sum *= exp_below(most, greatest);
      most = greatest;
    }
#pragma unroll
    for (int i = 0; i < count; ++i) sum += exp_below(values[i], most);
  }
  __device__ void add(const Exponentials& other) {
    if (other.sum == 0) return;
    const float greater = fmaxf(most, other.most);
    sum = sum * exp_below(most, greater) + other.sum * exp_below(other.most, greater);
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

/// `shared`: 32 of them, free again after the next barrier.
__device__ Exponentials over_block(Exponentials own, Exponentials* shared) {
  own = over_warp(own);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = own;
  __syncthreads();
  return over_warp(shared[threadIdx.x % kWarp]);
}

// What a logit becomes, but for the target's, of which `scale` is subtracted.
struct Gradient {
  float most;
  float factor;

  __device__ Gradient(const Exponentials& all, float scale)
      : most(all.most), factor(scale / all.sum) {}
  __device__ float of(float logit) const { return exp_below(logit, most) * factor; }
  template <class T>
  __device__ RawPack<T> of(Pack<T> logits) const {
#pragma unroll
    for (int i = 0; i < kPack; ++i) logits[i] = of(logits[i]);
    return logits.raw();
  }
};

// Of a row, in packs a thread: in shared memory, and the rest in registers. A row of 128,256 bf16
// is 250 KiB; a multiprocessor of an H200 has 227 for a block, which is its only one then.
template <class T>
constexpr int kShared = 28 / sizeof(T);
template <class T>
constexpr int kHeld = 4 / sizeof(T);
template <class T>
using Kept = OwnPacks<T, kThreads>;

template <class Call, int... numbers>
__device__ void for_each(std::integer_sequence<int, numbers...>, Call&& call) {
  (call(std::integral_constant<int, numbers>{}), ...);
}

// Each row is read once. As its gradient is written, the next row takes its place.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    resident_kernel(std::size_t rows, std::size_t vocabulary, const std::int32_t* targets,
                    float scale, T* logits, float* losses) {
  extern __shared__ uint4 memory[];
  __shared__ Exponentials shared[2][kWarp];
  const Kept<T> kept{memory};
  constexpr int kStep = kThreads * kPack;
  const int first = static_cast<int>(threadIdx.x) * kPack;
  const int left = static_cast<int>(vocabulary) - first;
  const auto inside = [left](int pack) { return pack * kStep < left; };
  const auto fetch = [&](std::size_t row, int pack) {
    if (row < rows && inside(pack)) {
      kept.copy(pack, logits + row * vocabulary + first + pack * kStep);
    }
    commit_copies();
  };

  std::size_t row = blockIdx.x;
#pragma unroll
  for (int p = 0; p < kShared<T>; ++p) fetch(row, p);
  std::int32_t target = targets[row];
  for (int turn = 0; row < rows; turn ^= 1) {
    T* const values = logits + row * vocabulary;
    RawPack<T> held[kHeld<T>];
#pragma unroll
    for (int h = 0; h < kHeld<T>; ++h) {
      held[h] = {};
      const int p = kShared<T> + h;
      if (inside(p)) held[h] = RawPack<T>::load(values + first + p * kStep);
    }
    // The thread that writes the target's pack, so that it has read the logit before.
    const bool counts = target >= 0;
    const bool owner = threadIdx.x == (counts ? target / kPack % kThreads : 0);
    float logit = 0;
    if (owner && counts) logit = widened(values[target]);

    Exponentials own;
    for_each(std::make_integer_sequence<int, kShared<T>>{}, [&](auto number) {
      constexpr int p = decltype(number)::value;
      wait_for_copies<kShared<T> - 1 - p>();
      if (inside(p)) own.add(kept[p].x);
    });
#pragma unroll
    for (int h = 0; h < kHeld<T>; ++h) {
      if (inside(kShared<T> + h)) own.add(Pack<T>::of(held[h]).x);
    }
    const Exponentials all = over_block(own, shared[turn]);
    if (owner) losses[row] = counts ? all.most + logf(all.sum) - logit : 0.0f;

    const std::size_t next = row + gridDim.x;
    const std::int32_t next_target = next < rows ? targets[next] : 0;
    const Gradient gradient(all, counts ? scale : 0.0f);
#pragma unroll
    for (int p = 0; p < kShared<T>; ++p) {
      if (inside(p)) gradient.of(kept[p]).store(values + first + p * kStep);
      fetch(next, p);
    }
#pragma unroll
    for (int h = 0; h < kHeld<T>; ++h) {
      const int p = kShared<T> + h;
      if (inside(p)) gradient.of(Pack<T>::of(held[h])).store(values + first + p * kStep);
    }
    // After the pack's store, of the same thread.
    if (owner && counts) values[target] = narrowed<T>(gradient.of(logit) - scale);
    row = next;
    target = next_target;
  }
}

// A block a row, which is read again for its gradient. Two blocks at the most are on a
// multiprocessor: the fewer rows at a time, the more of them are still in the second-level cache.
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
  for (std::size_t i = threadIdx.x * kStep; i < vocabulary; i += kThreads * kStep) {
    if constexpr (packed) {
      own.add(Pack<T>::load(values + i).x);
    } else {
      const float value[] = {widened(values[i])};
      own.add(value);
    }
  }
  const Exponentials all = over_block(own, shared);
  if (threadIdx.x == 0) {
    losses[row] = target < 0 ? 0.0f : all.most + logf(all.sum) - widened(values[target]);
  }
  if (scale == 0.0f) return;
  __syncthreads();  // the target's logit has been read
  const Gradient gradient(all, target < 0 ? 0.0f : scale);
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
        v[k] = gradient.of(v[k]);
        if (static_cast<std::int32_t>(i) + k == target) v[k] -= at_target;
      }
      v.store(values + i);
    } else {
      float v = gradient.of(widened(values[i]));
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

std::size_t device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  require(cudaGetDevice(&device), "asking for the device");
  require(cudaDeviceGetAttribute(&value, attribute, device), "asking what the device has");
  return static_cast<std::size_t>(value);
}

// Rows of half the size or less are in the second-level cache when they are read again.
template <class T>
bool stays_resident(std::size_t vocabulary) {
  constexpr std::size_t kMost = (kShared<T> + kHeld<T>)*kThreads * kPack;
  return vocabulary % kPack == 0 && vocabulary > kMost / 2 && vocabulary <= kMost &&
         kShared<T> * Kept<T>::kBytes + 2 * kWarp * sizeof(Exponentials) <=
             device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

}  // namespace

template <class T>
void cross_entropy(cudaStream_t stream, std::size_t rows, std::size_t vocabulary,
                   const std::int32_t* targets, float scale, T* logits, float* losses) {
  if (scale != 0.0f && stays_resident<T>(vocabulary)) {
    launch_with_shared("cross_entropy", stream, resident_kernel<T>, kShared<T> * Kept<T>::kBytes,
                       std::min(rows, device_attribute(cudaDevAttrMultiProcessorCount)), kThreads,
                       rows, vocabulary, targets, scale, logits, losses);
    return;
  }
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
