// Token and position embedding.
#pragma once

#include <cstddef>
#include <cstring>

#include "element.hpp"
#include "gradient.hpp"
#include "token.hpp"

namespace gpt {

/// x[row] = tokens' embedding + the embedding of the position. P is the weights' element type.
template <class P>
inline void embedding_forward(std::size_t batch, std::size_t context, std::size_t width,
                              const Token* tokens, const P* token_table, const P* position_table,
                              float* x) {
  for (std::size_t row = 0; row < batch * context; ++row, x += width) {
    const P* token = token_table + static_cast<std::size_t>(tokens[row]) * width;
    const P* position = position_table + row % context * width;
    for (std::size_t i = 0; i < width; ++i) x[i] = to_float(token[i]) + to_float(position[i]);
  }
}

/// Adds dx's rows to the tables one after the other, in the order of the rows: the sums have the
/// same bits in every run. Tokens that do not occur get zero.
inline void embedding_backward(std::size_t batch, std::size_t context, std::size_t width,
                               std::size_t vocabulary, const Token* tokens, const float* dx,
                               Gradient<float> token_table, Gradient<float> position_table) {
  const auto clear = [&](Gradient<float> g, std::size_t rows) {
    if (!g.accumulate) std::memset(g.data, 0, rows * width * sizeof(float));
  };
  clear(token_table, vocabulary);
  clear(position_table, context);
  for (std::size_t row = 0; row < batch * context; ++row, dx += width) {
    float* token = token_table.data + static_cast<std::size_t>(tokens[row]) * width;
    float* position = position_table.data + row % context * width;
    for (std::size_t i = 0; i < width; ++i) token[i] += dx[i];
    for (std::size_t i = 0; i < width; ++i) position[i] += dx[i];
  }
}

}  // namespace gpt
