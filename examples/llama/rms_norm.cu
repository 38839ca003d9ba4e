#include <algorithm>
#include <stdexcept>

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

// A block a row, a pack a thread: rows of up to 8,192 elements.
constexpr std::size_t kMostThreads = 1024;
// Blocks that share the rows in backward, each with its own sums of the weight's gradient: enough
// to fill the device, few enough that adding them up costs nothing.
constexpr std::size_t kBackwardBlocks = 1056;

std::size_t row_threads(std::size_t dim) {
  const std::size_t threads = divided_up(divided_up(dim, kPack), kWarp) * kWarp;
  if (dim % kPack != 0 || threads > kMostThreads) {
    throw std::invalid_argument("rms_norm: widths are multiples of 8 up to 8192");
  }
  return threads;
}

template <class T>
__global__ void __launch_bounds__(kMostThreads)
    forward_kernel(std::size_t dim, float epsilon, const T* x, const T* weight, T* out,
                   float* rstd) {
  __shared__ float shared[kWarp];
  const std::size_t row = blockIdx.x;
  const std::size_t at = threadIdx.x * kPack;
  const bool inside = at < dim;
  Pack<T> v{};
  if (inside) v = Pack<T>::load(x + row * dim + at);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) squares += v[i] * v[i];
  const float scale = rsqrtf(block_sum(squares, shared) / static_cast<float>(dim) + epsilon);
  if (threadIdx.x == 0) rstd[row] = scale;
  if (!inside) return;
  const Pack<T> w = Pack<T>::load(weight + at);
#pragma unroll
  for (int i = 0; i < kPack; ++i) v[i] = v[i] * scale * w[i];
  v.store(out + row * dim + at);
}

// With y = x r w:  dx = r (g w - x r mean(g w x r)),  dw = sum over rows of g x r.
template <class T, bool residual, bool again>
__global__ void __launch_bounds__(kMostThreads)
    backward_kernel(std::size_t rows, std::size_t dim, const T* x, const T* weight,
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

// A warp a column would read with stride dim: a block takes 32 columns, and rows in turn.
template <class T>
__global__ void weight_gradient_kernel(std::size_t blocks, std::size_t dim,
                                       const float* partial_sums, T* gradient, bool accumulate) {
  __shared__ float shared[kWarp][kWarp + 1];
  const std::size_t column = blockIdx.x * kWarp + threadIdx.x % kWarp;
  const unsigned first = threadIdx.x / kWarp;
  float sum = 0;
  if (column < dim) {
    for (std::size_t b = first; b < blocks; b += kWarp) sum += partial_sums[b * dim + column];
  }
  shared[first][threadIdx.x % kWarp] = sum;
  __syncthreads();
  const float total = warp_sum(shared[threadIdx.x % kWarp][first]);
  const std::size_t out = blockIdx.x * kWarp + first;
  if (threadIdx.x % kWarp != 0 || out >= dim) return;
  gradient[out] = narrowed<T>(accumulate ? widened(gradient[out]) + total : total);
}

template <class T, bool residual>
void backward(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x, const T* weight,
              const float* rstd, const T* out_gradient, T* x_gradient, T* out_again,
              T* weight_gradient, bool accumulate, RmsNormWorkspace workspace) {
  const std::size_t blocks = std::min(rows, kBackwardBlocks);
  launch("rms_norm_backward", stream,
         out_again != nullptr ? backward_kernel<T, residual, true>
                              : backward_kernel<T, residual, false>,
         blocks, row_threads(dim), rows, dim, x, weight, rstd, out_gradient, x_gradient, out_again,
         workspace.partial_sums);
  launch("rms_norm's weight gradient", stream, weight_gradient_kernel<T>, divided_up(dim, kWarp),
         kWarp * kWarp, blocks, dim, workspace.partial_sums, weight_gradient, accumulate);
}

}  // namespace

std::size_t RmsNormWorkspace::floats(std::size_t dim) { return kBackwardBlocks * dim; }

template <class T>
void rms_norm_forward(cudaStream_t stream, std::size_t rows, std::size_t dim, float epsilon,
                      const T* x, const T* weight, T* out, float* rstd) {
  launch("rms_norm_forward", stream, forward_kernel<T>, rows, row_threads(dim), dim, epsilon, x,
         weight, out, rstd);
}

template <class T>
void rms_norm_backward(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x,
                       const T* weight, const float* rstd, const T* out_gradient,
                       T* residual_gradient, T* out_again, T* weight_gradient, bool accumulate,
                       RmsNormWorkspace workspace) {
  backward<T, true>(stream, rows, dim, x, weight, rstd, out_gradient, residual_gradient, out_again,
                    weight_gradient, accumulate, workspace);
}

template <class T>
void rms_norm_backward_only(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x,
                            const T* weight, const float* rstd, const T* out_gradient,
                            T* x_gradient, T* weight_gradient, bool accumulate,
                            RmsNormWorkspace workspace) {
  backward<T, false>(stream, rows, dim, x, weight, rstd, out_gradient, x_gradient, nullptr,
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
