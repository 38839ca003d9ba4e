#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

constexpr std::size_t kWidest = 8192;

// One warp or several take a row together, `kPacks` packs a thread: all of a row's loads are under
// way before the first is waited for.
template <class T>
constexpr int kPacks = 16 / sizeof(T);
template <class T>
constexpr std::size_t kWarpWidth = kPacks<T>* kWarp* kPack;

/// Where a thread's packs are in its row, of which `threads` take a part each in turn.
template <unsigned threads>
struct Places {
  static constexpr int kStep = static_cast<int>(threads) * kPack;
  int first;
  int left;  ///< from the first to the row's end

  __device__ Places(std::size_t dim)
      : first(static_cast<int>(threadIdx.x % threads) * kPack),
        left(static_cast<int>(dim) - first) {}
  __device__ bool inside(int pack) const { return pack * kStep < left; }
};

void check_width(std::size_t dim) {
  if (dim % kPack != 0 || dim > kWidest) {
    throw std::invalid_argument("rms_norm: widths are multiples of 8 up to 8192");
  }
}

/// The sum over the `warps` neighbouring warps of a row, on each of their threads; all threads of
/// the block take part. `shared`: a float a warp, free again after the next but one.
template <unsigned warps>
__device__ float row_sum(float value, float* shared) {
  value = warp_sum(value);
  if constexpr (warps > 1) {
    const unsigned warp = threadIdx.x / kWarp;
    if (threadIdx.x % kWarp == 0) shared[warp] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (unsigned i = 0; i < warps; ++i) value += shared[warp / warps * warps + i];
  }
  return value;
}

constexpr unsigned kForwardWarps = 8;

template <class T, unsigned warps>
__global__ void __launch_bounds__(kForwardWarps* kWarp, 4)
    forward_kernel(std::size_t rows, std::size_t dim, float epsilon, const T* x, const T* weight,
                   T* out, float* rstd) {
  constexpr unsigned kThreads = warps * kWarp;
  __shared__ float shared[kForwardWarps];
  const std::size_t row =
      std::size_t{blockIdx.x} * (kForwardWarps / warps) + threadIdx.x / kThreads;
  using Own = Places<kThreads>;
  const Own own(row < rows ? dim : 0);
  const std::size_t begin = row * dim + own.first;
  RawPack<T> values[kPacks<T>];
#pragma unroll
  for (int p = 0; p < kPacks<T>; ++p) {
    values[p] = {};
    if (own.inside(p)) values[p] = RawPack<T>::load(x + begin + p * Own::kStep);
  }
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks<T>; ++p) {
    const Pack<T> v = Pack<T>::of(values[p]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares += v[i] * v[i];
  }
  const float scale = rsqrtf(row_sum<warps>(squares, shared) / static_cast<float>(dim) + epsilon);
  if (row < rows && own.first == 0) rstd[row] = scale;
#pragma unroll
  for (int p = 0; p < kPacks<T>; ++p) {
    if (!own.inside(p)) continue;
    Pack<T> v = Pack<T>::of(values[p]);
    const Pack<T> w = Pack<T>::load(weight + own.first + p * Own::kStep);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = v[i] * scale * w[i];
    v.store(out + begin + p * Own::kStep);
  }
}

// Blocks that share the rows in backward, each with its own sums of the weight's gradient: two for
// each multiprocessor of an H200, as many as fit, but the same number, and so the same sums, on
// every device.
constexpr std::size_t kBackwardBlocks = 264;

constexpr unsigned kBackwardWarps = 4;
constexpr unsigned kBackwardThreads = kBackwardWarps * kWarp;

// Two rows of each input: 96 KiB, of which other GPUs than an H200 have no more in a block.
template <class T, bool residual>
constexpr std::size_t kBackwardBytes =
    2 * (residual ? 3 : 2) * kPacks<T>* OwnPacks<T, kBackwardThreads>::kBytes;

// With y = x r w:  dx = r (g w - x r mean(g w x r)),  dw = sum over rows of g x r.
// While a row is computed with, the next is on its way to shared memory.
template <class T, unsigned warps, bool residual, bool again>
__global__ void __launch_bounds__(kBackwardThreads, 2)
    backward_kernel(std::size_t rows, std::size_t dim, const T* x, const T* weight,
                    const float* rstd, const T* out_gradient, T* x_gradient, T* out_again,
                    float* partial_sums) {
  constexpr int kInputs = residual ? 3 : 2;
  constexpr unsigned kThreads = warps * kWarp;
  constexpr unsigned kRows = kBackwardWarps / warps;  // of a block at a time
  extern __shared__ uint4 buffers[];
  __shared__ float shared[2][kBackwardWarps];
  const OwnPacks<T, kBackwardThreads> packs{buffers};
  const auto buffer = [](int stage, int input, int pack) {
    return (stage * kInputs + input) * kPacks<T> + pack;
  };
  const unsigned own_row = threadIdx.x / kThreads;
  using Own = Places<kThreads>;
  const Own own(dim);

  // What is beyond the row's end is zero and stays so.
  RawPack<T> weights[kPacks<T>];
#pragma unroll
  for (int p = 0; p < kPacks<T>; ++p) {
    weights[p] = {};
    if (own.inside(p)) {
      weights[p] = RawPack<T>::load(weight + own.first + p * Own::kStep);
    } else {
      for (int i = 0; i < 2 * kInputs; ++i) packs.set_zero(i * kPacks<T> + p);
    }
  }
  float next_scale = 0;
  const auto fetch = [&](std::size_t row, int stage) {
    if (row < rows) {
      next_scale = rstd[row];
      const std::size_t begin = row * dim + own.first;
#pragma unroll
      for (int p = 0; p < kPacks<T>; ++p) {
        if (!own.inside(p)) continue;
        packs.copy(buffer(stage, 0, p), x + begin + p * Own::kStep);
        packs.copy(buffer(stage, 1, p), out_gradient + begin + p * Own::kStep);
        if constexpr (residual) {
          packs.copy(buffer(stage, 2, p), x_gradient + begin + p * Own::kStep);
        }
      }
    }
    commit_copies();
  };

  float sums[kPacks<T>][kPack] = {};
  const std::size_t step = std::size_t{gridDim.x} * kRows;
  std::size_t row = std::size_t{blockIdx.x} * kRows + own_row;
  fetch(row, 0);
  // All threads go round as often, for the barrier's sake.
  for (int stage = 0; row - own_row < rows; row += step, stage ^= 1) {
    const float scale = next_scale;
    fetch(row + step, stage ^ 1);
    wait_for_copies<1>();
    const bool inside = row < rows;
    float product = 0;
    if (inside) {
#pragma unroll
      for (int p = 0; p < kPacks<T>; ++p) {
        const Pack<T> v = packs[buffer(stage, 0, p)];
        const Pack<T> g = packs[buffer(stage, 1, p)];
        const Pack<T> w = Pack<T>::of(weights[p]);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float normed = v[i] * scale;
          sums[p][i] += g[i] * normed;
          product += g[i] * w[i] * normed;
        }
      }
    }
    const float mean = row_sum<warps>(product, shared[stage]) / static_cast<float>(dim);
    if (inside) {
      const std::size_t begin = row * dim + own.first;
#pragma unroll
      for (int p = 0; p < kPacks<T>; ++p) {
        Pack<T> v = packs[buffer(stage, 0, p)];
        const Pack<T> g = packs[buffer(stage, 1, p)];
        const Pack<T> w = Pack<T>::of(weights[p]);
        Pack<T> result{};
        if constexpr (residual) result = packs[buffer(stage, 2, p)];
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          v[i] *= scale;
          result[i] += scale * (g[i] * w[i] - v[i] * mean);
          v[i] *= w[i];
        }
        if (!own.inside(p)) continue;
        result.store(x_gradient + begin + p * Own::kStep);
        if constexpr (again) v.store(out_again + begin + p * Own::kStep);
      }
    }
    __syncwarp();  // this row's buffers have been read: the next turn's copies are into them
  }

  // The block's sums: those of its rows in order.
  wait_for_copies<0>();
  __syncthreads();
  constexpr unsigned kWidth = kPacks<T> * kThreads * kPack;
  float* const all = reinterpret_cast<float*>(buffers);
#pragma unroll
  for (int p = 0; p < kPacks<T>; ++p) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      all[own_row * kWidth + own.first + p * Own::kStep + i] = sums[p][i];
    }
  }
  __syncthreads();
  for (unsigned column = threadIdx.x; column < dim; column += kBackwardThreads) {
    float sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) sum += all[i * kWidth + column];
    partial_sums[blockIdx.x * dim + column] = sum;
  }
}

// Where two rows of each input do not fit, a block a row and a pack a thread.
template <class T, bool residual, bool again>
__global__ void __launch_bounds__(kWidest / kPack)
    wide_backward_kernel(std::size_t rows, std::size_t dim, const T* x, const T* weight,
                         const float* rstd, const T* out_gradient, T* x_gradient, T* out_again,
                         float* partial_sums) {
  __shared__ float shared[2][kWarp];
  const std::size_t at = threadIdx.x * kPack;
  const bool inside = at < dim;
  Pack<T> w{};
  if (inside) w = Pack<T>::load(weight + at);
  float sums[kPack] = {};
  int turn = 0;
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    const float scale = rstd[row];
    const std::size_t here = row * dim + at;
    Pack<T> v{}, g{}, before{};
    if (inside) {
      v = Pack<T>::load(x + here);
      g = Pack<T>::load(out_gradient + here);
      if constexpr (residual) before = Pack<T>::load(x_gradient + here);
    }
    float product = 0;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      v[i] *= scale;
      sums[i] += g[i] * v[i];
      g[i] *= w[i];
      product += g[i] * v[i];
    }
    const float mean = block_sum(product, shared[turn]) / static_cast<float>(dim);
    if (!inside) continue;
    Pack<T> result;
#pragma unroll
    for (int i = 0; i < kPack; ++i) result[i] = before[i] + scale * (g[i] - v[i] * mean);
    result.store(x_gradient + here);
    if constexpr (again) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) v[i] *= w[i];
      v.store(out_again + here);
    }
  }
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < kPack; ++i) partial_sums[blockIdx.x * dim + at + i] = sums[i];
}

constexpr std::size_t kTerms = divided_up(kBackwardBlocks, kWarp);

// A warp a column would read with stride dim: a block takes 32 columns, and rows in turn.
template <class T>
__global__ void weight_gradient_kernel(std::size_t blocks, std::size_t dim,
                                       const float* partial_sums, T* gradient, bool accumulate) {
  __shared__ float shared[kWarp][kWarp + 1];
  const std::size_t column = blockIdx.x * kWarp + threadIdx.x % kWarp;
  const unsigned first = threadIdx.x / kWarp;
  float terms[kTerms] = {};  // loads that do not wait for each other
#pragma unroll
  for (std::size_t i = 0; i < kTerms; ++i) {
    const std::size_t block = first + i * kWarp;
    if (block < blocks && column < dim) terms[i] = partial_sums[block * dim + column];
  }
  float sum = 0;
#pragma unroll
  for (std::size_t i = 0; i < kTerms; ++i) sum += terms[i];
  shared[first][threadIdx.x % kWarp] = sum;
  __syncthreads();
  const float total = warp_sum(shared[threadIdx.x % kWarp][first]);
  const std::size_t out = blockIdx.x * kWarp + first;
  if (threadIdx.x % kWarp != 0 || out >= dim) return;
  gradient[out] = narrowed<T>(accumulate ? widened(gradient[out]) + total : total);
}

/// Calls with the number of warps that a row takes, at most `most`, a constant.
template <class T, unsigned warps, unsigned most, class Call>
void with_warps(std::size_t dim, Call&& call) {
  if constexpr (warps < most) {
    if (dim > warps * kWarpWidth<T>) return with_warps<T, 2 * warps, most>(dim, call);
  }
  call(std::integral_constant<unsigned, warps>{});
}

template <class T, bool residual, bool again>
void backward(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x, const T* weight,
              const float* rstd, const T* out_gradient, T* x_gradient, T* out_again,
              T* weight_gradient, bool accumulate, RmsNormWorkspace workspace) {
  check_width(dim);
  std::size_t blocks = std::min(rows, kBackwardBlocks);
  constexpr std::size_t kBuffered = kBackwardWarps * kWarpWidth<T>;
  if (dim <= kBuffered) {
    with_warps<T, 1, kBackwardWarps>(dim, [&](auto warps) {
      blocks = std::min(divided_up(rows, kBackwardWarps / warps()), kBackwardBlocks);
      launch_with_shared("rms_norm_backward", stream, backward_kernel<T, warps(), residual, again>,
                         kBackwardBytes<T, residual>, blocks, kBackwardThreads, rows, dim, x,
                         weight, rstd, out_gradient, x_gradient, out_again, workspace.partial_sums);
    });
  } else if constexpr (kWidest > kBuffered) {
    launch("rms_norm_backward", stream, wide_backward_kernel<T, residual, again>, blocks,
           divided_up(dim / kPack, kWarp) * kWarp, rows, dim, x, weight, rstd, out_gradient,
           x_gradient, out_again, workspace.partial_sums);
  }
  launch("rms_norm's weight gradient", stream, weight_gradient_kernel<T>, divided_up(dim, kWarp),
         kWarp * kWarp, blocks, dim, workspace.partial_sums, weight_gradient, accumulate);
}

}  // namespace

std::size_t RmsNormWorkspace::floats(std::size_t dim) { return kBackwardBlocks * dim; }

template <class T>
void rms_norm_forward(cudaStream_t stream, std::size_t rows, std::size_t dim, float epsilon,
                      const T* x, const T* weight, T* out, float* rstd) {
  check_width(dim);
  with_warps<T, 1, kWidest / kWarpWidth<T>>(dim, [&](auto warps) {
    launch("rms_norm_forward", stream, forward_kernel<T, warps()>,
           divided_up(rows, kForwardWarps / warps()), kForwardWarps * kWarp, rows, dim, epsilon, x,
           weight, out, rstd);
  });
}

template <class T>
void rms_norm_backward(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x,
                       const T* weight, const float* rstd, const T* out_gradient,
                       T* residual_gradient, T* out_again, T* weight_gradient, bool accumulate,
                       RmsNormWorkspace workspace) {
  const auto pass = out_again != nullptr ? backward<T, true, true> : backward<T, true, false>;
  pass(stream, rows, dim, x, weight, rstd, out_gradient, residual_gradient, out_again,
       weight_gradient, accumulate, workspace);
}

template <class T>
void rms_norm_backward_only(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x,
                            const T* weight, const float* rstd, const T* out_gradient,
                            T* x_gradient, T* weight_gradient, bool accumulate,
                            RmsNormWorkspace workspace) {
  backward<T, false, false>(stream, rows, dim, x, weight, rstd, out_gradient, x_gradient, nullptr,
                            weight_gradient, accumulate, workspace);
}

#define INSTANTIATE(T)                                                                             \
  template void rms_norm_forward(cudaStream_t, std::size_t, std::size_t, float, const T*,          \
                                 const T*, T*, float*);                                            \
  template void rms_norm_backward(cudaStream_t, std::size_t, std::size_t, const T*, const T*,      \
                                  const float*, const T*, T*, T*, T*, bool, RmsNormWorkspace);     \
  template void rms_norm_backward_only(cudaStream_t, std::size_t, std::size_t, const T*, const T*, \
                                       const float*, const T*, T*, T*, bool, RmsNormWorkspace);
LLAMA_FOR_ELEMENTS(INSTANTIATE)

}  // namespace llama
