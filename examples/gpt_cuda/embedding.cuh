// Token and position embedding.
#pragma once

#include <cstddef>

#include "../gpt/gradient.hpp"
#include "../gpt/token.hpp"
#include "brain_float.cuh"
#include "queue.hpp"

namespace gpt::cuda {

template <class P>
__global__ void embedding_forward_kernel(std::size_t context, std::size_t width,
                                         const Token* tokens, const P* token_table,
                                         const P* position_table, float* x) {
  const std::size_t row = blockIdx.x;
  const P* const token = token_table + static_cast<std::size_t>(tokens[row]) * width;
  const P* const position = position_table + row % context * width;
  for (std::size_t i = threadIdx.x; i < width; i += kThreads) {
    x[row * width + i] = widened(token[i]) + widened(position[i]);
  }
}

/// x[row] = tokens' embedding + the embedding of the position. P is the weights' element type.
template <class P>
void embedding_forward(const Queue& q, std::size_t batch, std::size_t context, std::size_t width,
                       const Token* tokens, const P* token_table, const P* position_table,
                       float* x) {
  launch_row_blocks(q.stream(), batch * context, embedding_forward_kernel<P>, context, width,
                    tokens, token_table, position_table, x);
}

inline constexpr unsigned kTokenThreads = 128;

/// A block gathers one token's gradient: it lists the rows that hold the token, in their order, and
/// each thread adds one column of them. No two blocks write the same element, so nothing is atomic.
static __global__ void token_gradient_kernel(std::size_t rows, std::size_t width,
                                             const Token* tokens, const float* dx, bool accumulate,
                                             float* table) {
  constexpr unsigned kTokenWarps = kTokenThreads / kWarp;
  __shared__ std::size_t found[kTokenThreads];
  __shared__ unsigned found_by_warp[kTokenWarps];
  const auto own = static_cast<Token>(blockIdx.x);
  const std::size_t column = std::size_t{blockIdx.y} * kTokenThreads + threadIdx.x;
  const unsigned warp = threadIdx.x / kWarp;
  float sum = 0.0f;
  for (std::size_t first = 0; first < rows; first += kTokenThreads) {
    const std::size_t row = first + threadIdx.x;
    const bool hit = row < rows && tokens[row] == own;
    const unsigned hits = __ballot_sync(0xffffffffu, hit);
    if (this_lane() == 0) found_by_warp[warp] = static_cast<unsigned>(__popc(hits));
    __syncthreads();
    unsigned place = static_cast<unsigned>(__popc(hits & ((1u << this_lane()) - 1u)));
    unsigned count = 0;
    for (unsigned w = 0; w < kTokenWarps; ++w) {
      if (w < warp) place += found_by_warp[w];
      count += found_by_warp[w];
    }
    if (hit) found[place] = row;
    __syncthreads();
    if (column < width) {
      for (unsigned i = 0; i < count; ++i) sum += dx[found[i] * width + column];
    }
    __syncthreads();  // the lists are used again
  }
  if (column >= width) return;
  float* const to = table + blockIdx.x * width + column;
  *to = accumulate ? *to + sum : sum;
}

static __global__ void position_gradient_kernel(std::size_t n, std::size_t batch, const float* dx,
                                                bool accumulate, float* table) {
  const std::size_t i = this_element();
  if (i >= n) return;
  float sum = 0.0f;
  for (std::size_t b = 0; b < batch; ++b) sum += dx[b * n + i];
  table[i] = accumulate ? table[i] + sum : sum;
}

/// Sums dx's rows into the tables, in the order of the rows. Tokens that do not occur get zero.
inline void embedding_backward(const Queue& q, std::size_t batch, std::size_t context,
                               std::size_t width, std::size_t vocabulary, const Token* tokens,
                               const float* dx, Gradient<float> token_table,
                               Gradient<float> position_table) {
  launch(q.stream(), token_gradient_kernel,
         dim3(static_cast<unsigned>(vocabulary), blocks_for(width, kTokenThreads)),
         dim3(kTokenThreads), batch * context, width, tokens, dx, token_table.accumulate,
         token_table.data);
  launch_each(q.stream(), context * width, position_gradient_kernel, batch, dx,
              position_table.accumulate, position_table.data);
}

}  // namespace gpt::cuda
