#include <algorithm>
#include <cmath>

#include "device.cuh"
#include "plain_state.hpp"

namespace llama {
namespace {

// Tensors begin at a multiple of it, so that all elements of a block decay or none does.
constexpr std::size_t kBlock = 1024;
constexpr std::size_t kNormBlocks = 1056;
constexpr std::size_t kThreads = 256;

__global__ void first_values_kernel(std::size_t count, FirstValue value, tessera::bf16* weights,
                                    float* masters) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  masters[i] = value(i);
  weights[i] = tessera::to_bf16(masters[i]);
}

__global__ void squares_kernel(std::size_t elements, const tessera::bf16* gradients,
                               double* partials) {
  __shared__ double shared[kThreads];
  double sum = 0;
  const std::size_t step = std::size_t{gridDim.x} * kThreads * kPack;
  for (std::size_t i = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kPack; i < elements;
       i += step) {
    const auto g = Pack<tessera::bf16>::load(gradients + i);
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kPack; ++k) squares += g[k] * g[k];
    sum += static_cast<double>(squares);
  }
  shared[threadIdx.x] = sum;
  for (std::size_t half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) partials[blockIdx.x] = shared[0];
}

__global__ void clip_kernel(std::size_t count, const double* partials, float clip, float* factor) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += partials[i];
  const double most = static_cast<double>(clip);
  *factor = clip > 0 ? static_cast<float>(fmin(1.0, most / (sqrt(sum) + 1e-6))) : 1.0f;
}

struct Coefficients {
  float beta1, beta2, epsilon, step_size, root_scale, decay;
};

__global__ void adamw_kernel(std::size_t elements, Coefficients c, const float* clip,
                             const std::uint8_t* decays, const tessera::bf16* gradients,
                             tessera::bf16* weights, float* masters, float* first, float* second) {
  const std::size_t i = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  if (i >= elements) return;
  const float factor = *clip;
  const float decay = decays[i / kBlock] != 0 ? c.decay : 0.0f;
  const auto g = Pack<tessera::bf16>::load(gradients + i);
  auto w = Pack<float>::load(masters + i);
  auto m = Pack<float>::load(first + i);
  auto v = Pack<float>::load(second + i);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    const float gradient = g[k] * factor;
    m[k] = c.beta1 * m[k] + (1.0f - c.beta1) * gradient;
    v[k] = c.beta2 * v[k] + (1.0f - c.beta2) * gradient * gradient;
    w[k] -= c.step_size * m[k] / (sqrtf(v[k]) * c.root_scale + c.epsilon) + decay * w[k];
  }
  w.store(masters + i);
  m.store(first + i);
  v.store(second + i);
  Pack<tessera::bf16> rounded;
#pragma unroll
  for (int k = 0; k < kPack; ++k) rounded[k] = w[k];
  rounded.store(weights + i);
}

}  // namespace

PlainState::~PlainState() {
  cudaStreamSynchronize(stream_);
  cudaFree(memory_);
}

std::size_t PlainState::add(std::size_t size, bool decays, FirstValue first) {
  tensors_.push_back({elements_, size, decays, first});
  elements_ += divided_up(size, kBlock) * kBlock;
  return tensors_.size() - 1;
}

void PlainState::allocate() {
  const std::size_t blocks = elements_ / kBlock;
  const std::size_t scratch = (kNormBlocks + 1) * sizeof(double) + blocks;
  bytes_ = elements_ * (2 + 2 + 4 + 4 + 4) + scratch;
  require(cudaMalloc(&memory_, bytes_), "allocating the training state");
  require(cudaMemsetAsync(memory_, 0, bytes_, stream_), "clearing the training state");
  auto* at = static_cast<std::byte*>(memory_);
  const auto take = [&]<class T>(T*& to, std::size_t count) {
    to = reinterpret_cast<T*>(at);
    at += count * sizeof(T);
  };
  take(masters_, elements_);
  take(first_, elements_);
  take(second_, elements_);
  take(weights_, elements_);
  take(gradients_, elements_);
  take(partials_, kNormBlocks);
  take(clip_, 2);
  take(decays_, blocks);
  std::vector<std::uint8_t> decays(blocks);
  for (const Tensor& tensor : tensors_) {
    launch("first values", stream_, first_values_kernel, divided_up(tensor.size, kThreads),
           kThreads, tensor.size, tensor.first, weights_ + tensor.offset, masters_ + tensor.offset);
    const std::size_t begin = tensor.offset / kBlock;
    std::fill_n(decays.begin() + static_cast<std::ptrdiff_t>(begin),
                divided_up(tensor.size, kBlock), tensor.decays ? 1 : 0);
  }
  require(cudaStreamSynchronize(stream_), "setting first values");
  require(cudaMemcpy(decays_, decays.data(), blocks, cudaMemcpyHostToDevice), "copying");
}

tessera::bf16* PlainState::weight(std::size_t tensor) const {
  return weights_ + tensors_[tensor].offset;
}
tessera::bf16* PlainState::gradient(std::size_t tensor) const {
  return gradients_ + tensors_[tensor].offset;
}

void PlainState::step(const PlainAdamW& rule) {
  ++steps_;
  const double bias1 = 1.0 - std::pow(static_cast<double>(rule.beta1), steps_);
  const double bias2 = 1.0 - std::pow(static_cast<double>(rule.beta2), steps_);
  const Coefficients c{rule.beta1,
                       rule.beta2,
                       rule.epsilon,
                       static_cast<float>(static_cast<double>(rule.learning_rate) / bias1),
                       static_cast<float>(1.0 / std::sqrt(bias2)),
                       rule.learning_rate * rule.weight_decay};
  launch("squares", stream_, squares_kernel, kNormBlocks, kThreads, elements_, gradients_,
         partials_);
  launch("clip factor", stream_, clip_kernel, 1, 1, kNormBlocks, partials_, rule.clip, clip_);
  launch("AdamW", stream_, adamw_kernel, divided_up(elements_, kThreads * kPack), kThreads,
         elements_, c, clip_, decays_, gradients_, weights_, masters_, first_, second_);
}

}  // namespace llama
