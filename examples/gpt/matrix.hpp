// A row-major matrix in other memory, as products take it.
#pragma once

#include <cstddef>

namespace gpt {

struct Matrix {
  const float* data;
  std::size_t stride;  // floats from one row to the next
  bool transposed = false;
};

inline Matrix transposed(Matrix m) { return {m.data, m.stride, !m.transposed}; }

}  // namespace gpt
