#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace llama_reference {

/// out [rows, dim]: the tokens' rows of the table.
template <class Real>
void embedding_forward(std::size_t rows, std::size_t dim, const std::uint32_t* tokens,
                       const Real* table, Real* out) {
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(table + tokens[row] * dim, dim, out + row * dim);
  }
}

/// Adds to dtable.
template <class Real>
void embedding_backward(std::size_t rows, std::size_t dim, const std::uint32_t* tokens,
                        const Real* dout, Real* dtable) {
  for (std::size_t row = 0; row < rows; ++row) {
    Real* to = dtable + tokens[row] * dim;
    for (std::size_t i = 0; i < dim; ++i) to[i] += dout[row * dim + i];
  }
}

}  // namespace llama_reference
