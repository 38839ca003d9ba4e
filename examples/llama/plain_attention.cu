#include <stdexcept>

#include "attention.hpp"
#include "device.cuh"
#include "documents.hpp"
#include "kernels.hpp"

namespace llama {
namespace {

constexpr unsigned kThreads = 128;

/// Where the parts of one token's row lie.
struct Rows {
  std::size_t sequence, heads, kv_heads, head_dim, stride;
  const std::int32_t* documents;  ///< [rows], the row where each one's starts; null: its sequence's

  Rows(const AttentionShape& s, const std::int32_t* first_row)
      : sequence(s.sequence),
        heads(s.heads),
        kv_heads(s.kv_heads),
        head_dim(s.head_dim),
        stride(s.stride()),
        documents(first_row) {}
  /// The first position that a position of a sequence sees.
  __device__ std::size_t first_seen(std::size_t batch, std::size_t position) const {
    if (documents == nullptr) return 0;
    return static_cast<std::size_t>(documents[batch * sequence + position]) - batch * sequence;
  }
  __device__ std::size_t q(std::size_t row, std::size_t head) const {
    return row * stride + head * head_dim;
  }
  __device__ std::size_t k(std::size_t row, std::size_t kv) const {
    return row * stride + (heads + kv) * head_dim;
  }
  __device__ std::size_t v(std::size_t row, std::size_t kv) const {
    return row * stride + (heads + kv_heads + kv) * head_dim;
  }
  __device__ std::size_t out(std::size_t row, std::size_t head) const {
    return (row * heads + head) * head_dim;
  }
  __device__ std::size_t statistic(std::size_t batch, std::size_t head, std::size_t at) const {
    return (batch * heads + head) * sequence + at;
  }
};

__device__ float dot(const float* a, const float* b, std::size_t n) {
  float sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Blocks: (position, head, sequence of the batch).
__global__ void forward_kernel(Rows at, float scale, const float* qkv, float* out,
                               float* statistics) {
  extern __shared__ float weights[];
  __shared__ float shared[kWarp];
  const std::size_t position = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const std::size_t first = batch * at.sequence;
  const std::size_t seen = at.first_seen(batch, position);
  const std::size_t kv = head / (at.heads / at.kv_heads);
  const float* const q = qkv + at.q(first + position, head);
  float most = -INFINITY;
  for (std::size_t j = seen + threadIdx.x; j <= position; j += kThreads) {
    weights[j] = scale * dot(q, qkv + at.k(first + j, kv), at.head_dim);
    most = fmaxf(most, weights[j]);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) most = fmaxf(most, shared[warp]);
  __syncthreads();
  float sum = 0;
  for (std::size_t j = seen + threadIdx.x; j <= position; j += kThreads) {
    weights[j] = expf(weights[j] - most);
    sum += weights[j];
  }
  sum = block_sum(sum, shared);
  __syncthreads();
  if (threadIdx.x == 0) statistics[at.statistic(batch, head, position)] = most + logf(sum);
  for (std::size_t d = threadIdx.x; d < at.head_dim; d += kThreads) {
    float value = 0;
    for (std::size_t j = seen; j <= position; ++j) {
      value += weights[j] * qkv[at.v(first + j, kv) + d];
    }
    out[at.out(first + position, head) + d] = value / sum;
  }
}

/// The probability that `row` gives to `column`, and the gradient of their score.
struct Score {
  float probability, gradient;

  __device__ Score(const Rows& at, float scale, const float* qkv, const float* out,
                   const float* statistics, const float* out_gradient, std::size_t batch,
                   std::size_t head, std::size_t kv, std::size_t row, std::size_t column) {
    const std::size_t first = batch * at.sequence;
    const float* const upper = out_gradient + at.out(first + row, head);
    const float score =
        scale * dot(qkv + at.q(first + row, head), qkv + at.k(first + column, kv), at.head_dim);
    probability = expf(score - statistics[at.statistic(batch, head, row)]);
    const float of_probability = dot(upper, qkv + at.v(first + column, kv), at.head_dim);
    const float mean = dot(upper, out + at.out(first + row, head), at.head_dim);
    gradient = probability * (of_probability - mean) * scale;
  }
};

__global__ void query_gradient_kernel(Rows at, float scale, const float* qkv, const float* out,
                                      const float* statistics, const float* out_gradient,
                                      float* qkv_gradient) {
  extern __shared__ float gradients[];
  const std::size_t row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const std::size_t seen = at.first_seen(batch, row);
  const std::size_t kv = head / (at.heads / at.kv_heads);
  for (std::size_t j = seen + threadIdx.x; j <= row; j += kThreads) {
    gradients[j] =
        Score(at, scale, qkv, out, statistics, out_gradient, batch, head, kv, row, j).gradient;
  }
  __syncthreads();
  const std::size_t first = batch * at.sequence;
  for (std::size_t d = threadIdx.x; d < at.head_dim; d += kThreads) {
    float value = 0;
    for (std::size_t j = seen; j <= row; ++j) value += gradients[j] * qkv[at.k(first + j, kv) + d];
    qkv_gradient[at.q(first + row, head) + d] = value;
  }
}

__global__ void key_value_gradient_kernel(Rows at, float scale, const float* qkv, const float* out,
                                          const float* statistics, const float* out_gradient,
                                          float* qkv_gradient) {
  extern __shared__ float shared[];
  float* const probabilities = shared;
  float* const gradients = shared + at.sequence;
  const std::size_t column = blockIdx.x, kv = blockIdx.y, batch = blockIdx.z;
  const std::size_t group = at.heads / at.kv_heads;
  const std::size_t first = batch * at.sequence;
  float of_key[2] = {}, of_value[2] = {};  // head dimensions of up to 256
  for (std::size_t head = kv * group; head < (kv + 1) * group; ++head) {
    __syncthreads();
    for (std::size_t i = column + threadIdx.x; i < at.sequence; i += kThreads) {
      probabilities[i] = gradients[i] = 0;
      if (at.first_seen(batch, i) > column) continue;
      const Score score(at, scale, qkv, out, statistics, out_gradient, batch, head, kv, i, column);
      probabilities[i] = score.probability;
      gradients[i] = score.gradient;
    }
    __syncthreads();
    for (int part = 0; part < 2; ++part) {
      const std::size_t d = threadIdx.x + static_cast<std::size_t>(part) * kThreads;
      if (d >= at.head_dim) continue;
      for (std::size_t i = column; i < at.sequence; ++i) {
        of_key[part] += gradients[i] * qkv[at.q(first + i, head) + d];
        of_value[part] += probabilities[i] * out_gradient[at.out(first + i, head) + d];
      }
    }
  }
  for (int part = 0; part < 2; ++part) {
    const std::size_t d = threadIdx.x + static_cast<std::size_t>(part) * kThreads;
    if (d >= at.head_dim) continue;
    qkv_gradient[at.k(first + column, kv) + d] = of_key[part];
    qkv_gradient[at.v(first + column, kv) + d] = of_value[part];
  }
}

float scale_of(const AttentionShape& s) { return 1.0f / sqrtf(static_cast<float>(s.head_dim)); }

template <class... Parameters>
void launch_grid(const char* what, cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid,
                 std::size_t shared_bytes, std::type_identity_t<Parameters>... arguments) {
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  require(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(kThreads), addresses,
                           shared_bytes, stream),
          what);
}

}  // namespace

PlainAttention::PlainAttention(cudaStream_t stream, const AttentionShape& shape, bool)
    : stream_(stream), shape_(shape) {
  if (shape.sequence > 6000 || shape.head_dim > 256) {
    throw std::invalid_argument(
        "fp32 attention is for sequences of up to 6000 tokens and heads of up to 256");
  }
  if (shape.documents == 0) return;
  const auto carve = [&] {
    starts_ = arena_.take<std::int32_t>(shape.documents + 1);
    first_row_ = arena_.take<std::int32_t>(shape.rows());
  };
  carve();
  arena_ = DeviceArena(arena_.most_used());
  carve();
  set_documents(whole_sequences(shape.batch, shape.sequence, shape.documents).data());
}

void PlainAttention::set_documents(const std::int32_t* starts) {
  require(cudaMemcpyAsync(starts_, starts, (shape_.documents + 1) * sizeof(std::int32_t),
                          cudaMemcpyHostToDevice, stream_),
          "uploading documents");
  document_of_rows(stream_, shape_.rows(), shape_.documents, starts_, first_row_);
}

std::size_t PlainAttention::workspace_bytes() const { return 0; }

void PlainAttention::forward(const float* qkv, float* out, float* statistics, void*) {
  const dim3 grid(static_cast<unsigned>(shape_.sequence), static_cast<unsigned>(shape_.heads),
                  static_cast<unsigned>(shape_.batch));
  launch_grid("attention", stream_, forward_kernel, grid, shape_.sequence * sizeof(float),
              Rows(shape_, first_row_), scale_of(shape_), qkv, out, statistics);
}

void PlainAttention::backward(const float* qkv, const float* out, const float* statistics,
                              const float* out_gradient, float* qkv_gradient, void*) {
  const auto sequence = static_cast<unsigned>(shape_.sequence);
  const auto batch = static_cast<unsigned>(shape_.batch);
  launch_grid("attention's query gradient", stream_, query_gradient_kernel,
              dim3(sequence, static_cast<unsigned>(shape_.heads), batch),
              shape_.sequence * sizeof(float), Rows(shape_, first_row_), scale_of(shape_), qkv, out,
              statistics, out_gradient, qkv_gradient);
  launch_grid("attention's key and value gradients", stream_, key_value_gradient_kernel,
              dim3(sequence, static_cast<unsigned>(shape_.kv_heads), batch),
              2 * shape_.sequence * sizeof(float), Rows(shape_, first_row_), scale_of(shape_), qkv,
              out, statistics, out_gradient, qkv_gradient);
}

}  // namespace llama
