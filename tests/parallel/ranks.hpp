// What the tests of parallel/ share: ranks on a tensor axis, and values that all of them know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>
#include <tessera/tessera.hpp>

namespace parallel_tests {

using Floats = std::vector<float>;

/// From -1 to 1, by seed.
inline Floats random_floats(std::size_t n, std::uint32_t seed) {
  Floats values(n);
  seed = seed * 747796405u + 2891336453u;
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return values;
}

/// body(mesh) on `size` ranks that are one tensor axis.
template <class Body>
void on_tensor_axis(int size, Body&& body) {
  tessera::run_ranks(size, [&](tessera::InProcess ranks) {
    tessera::Mesh<tessera::Host> mesh(ranks, tessera::MeshShape{.tensor = size});
    body(mesh);
  });
}

inline double dot(const Floats& a, const Floats& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// The columns `share` of a matrix of `columns`.
inline Floats columns_of(const Floats& matrix, std::size_t columns, tessera::Share share) {
  Floats part;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    if (share.has(i % columns)) part.push_back(matrix[i]);
  }
  return part;
}
inline Floats rows_of(const Floats& matrix, std::size_t columns, tessera::Share share) {
  const auto at = [&](std::uint64_t row) {
    return matrix.begin() + static_cast<std::ptrdiff_t>(row * columns);
  };
  return Floats(at(share.begin), at(share.end()));
}

}  // namespace parallel_tests
