#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#ifdef LLAMA_REFERENCE_BLAS
#include <cblas.h>
#endif

namespace llama_reference {

/// A factor of a product: row-major, read as it lies or transposed.
template <class Real>
struct Factor {
  const Real* data;
  bool transposed = false;
};

/// out [rows, columns] += left [rows, inner] right [inner, columns]: sizes as they are multiplied.
template <class Real>
void add_product(std::size_t rows, std::size_t columns, std::size_t inner, Factor<Real> left,
                 Factor<Real> right, Real* out) {
#ifdef LLAMA_REFERENCE_BLAS
  if constexpr (std::is_same_v<Real, float>) {
    const auto size = [](std::size_t n) { return static_cast<int>(n); };
    const auto order = [](Factor<Real> f) { return f.transposed ? CblasTrans : CblasNoTrans; };
    cblas_sgemm(CblasRowMajor, order(left), order(right), size(rows), size(columns), size(inner),
                1.0f, left.data, size(left.transposed ? rows : inner), right.data,
                size(right.transposed ? inner : columns), 1.0f, out, size(columns));
    return;
  }
#endif
  constexpr std::size_t kBlock = 64;
  std::vector<Real> packed(kBlock * kBlock);
  for (std::size_t i0 = 0; i0 < inner; i0 += kBlock) {
    const std::size_t depth = std::min(kBlock, inner - i0);
    for (std::size_t c0 = 0; c0 < columns; c0 += kBlock) {
      const std::size_t width = std::min(kBlock, columns - c0);
      for (std::size_t i = 0; i < depth; ++i) {
        for (std::size_t c = 0; c < width; ++c) {
          packed[i * kBlock + c] = right.transposed ? right.data[(c0 + c) * inner + i0 + i]
                                                    : right.data[(i0 + i) * columns + c0 + c];
        }
      }
      for (std::size_t row = 0; row < rows; ++row) {
        Real* to = out + row * columns + c0;
        for (std::size_t i = 0; i < depth; ++i) {
          const Real factor =
              left.transposed ? left.data[(i0 + i) * rows + row] : left.data[row * inner + i0 + i];
          for (std::size_t c = 0; c < width; ++c) to[c] += factor * packed[i * kBlock + c];
        }
      }
    }
  }
}

}  // namespace llama_reference
