// An embedding whose table's rows are shared out over ranks: what each rank computes of it, on the
// host.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/exact/bf16.hpp"
#include "tessera/parallel/share.hpp"

namespace tessera {

namespace detail {
constexpr float widened(float value) { return value; }
constexpr float widened(bf16 value) { return to_float(value); }
}  // namespace detail

/// out[tokens.size(), width]: the rows of those tokens that are in `share`, zeros for the others.
/// `table` [share.size, width] is this rank's, of float or bf16. The ranks' sum is the embedding,
/// bit by bit: see ParallelRegion::leave.
template <class T, std::integral Token>
void embed_share(std::span<const Token> tokens, Share share, std::size_t width, const T* table,
                 float* out) {
  for (const Token token : tokens) {
    const auto row = static_cast<std::uint64_t>(token);
    if (share.has(row)) {
      const T* const from = table + (row - share.begin) * width;
      for (std::size_t i = 0; i < width; ++i) out[i] = detail::widened(from[i]);
    } else {
      std::fill_n(out, width, 0.0f);
    }
    out += width;
  }
}

/// Adds the rows of d[tokens.size(), width] to those of gradient[share.size, width], one after the
/// other, for the tokens that are in `share`.
template <std::integral Token>
void embed_share_backward(std::span<const Token> tokens, Share share, std::size_t width,
                          const float* d, float* gradient) {
  for (const Token token : tokens) {
    const auto row = static_cast<std::uint64_t>(token);
    if (share.has(row)) {
      float* const to = gradient + (row - share.begin) * width;
      for (std::size_t i = 0; i < width; ++i) to[i] += d[i];
    }
    d += width;
  }
}

}  // namespace tessera
