#pragma once

#include <cstdint>

#include "tessera/exact/lanes.hpp"
#include "tessera/exact/rounding_mode.hpp"

namespace tessera {
namespace detail {
inline namespace TESSERA_ISA {

/// Four vectors of lanes a time: the additions of one wait for each other.
inline constexpr int kRankSumLanes = 4;
inline constexpr int kRankSumBlock = kRankSumLanes * kNativeLanes;

// noinline: see elementwise_blocks.
template <class T, class O>
[[gnu::noinline]] void rank_sum_blocks(std::uint64_t first, std::uint64_t last,
                                       const T* const* sources, int ranks, float scale,
                                       bool accumulate, O* out) {
  using R = Lanes<kNativeLanes>;
  const R factor = R::splat(scale);
  for (std::uint64_t i = first; i != last; i += kRankSumBlock) {
    R sum[kRankSumLanes];
    TESSERA_UNROLL
    for (int k = 0; k != kRankSumLanes; ++k) sum[k] = R::load(sources[0] + i + k * R::width);
    for (int rank = 1; rank < ranks; ++rank) {
      const T* source = sources[rank] + i;
      TESSERA_UNROLL
      for (int k = 0; k != kRankSumLanes; ++k) sum[k] = sum[k] + R::load(source + k * R::width);
    }
    TESSERA_UNROLL
    for (int k = 0; k != kRankSumLanes; ++k) {
      sum[k] = sum[k] * factor;
      O* to = out + i + k * R::width;
      if (accumulate) sum[k] = R::load(to) + sum[k];
      sum[k].store(to);
    }
  }
}

/// The last elements, one at a time in a block of their own: padded, and so on the same code.
template <class T, class O>
void rank_sum_tail(std::uint64_t first, std::uint64_t last, const T* const* sources, int ranks,
                   float scale, bool accumulate, O* out) {
  // Ranks are folded one by one, as sums are: the block holds ((x0 + x1) + ...) so far. A factor of
  // 1 is exact; the scale is applied last.
  float sum[kRankSumBlock] = {};
  T next[kRankSumBlock] = {};
  O result[kRankSumBlock] = {};
  const auto count = last - first;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::uint64_t i = 0; i != count; ++i) next[i] = sources[rank][first + i];
    const T* const one[] = {next};
    rank_sum_blocks(0, kRankSumBlock, one, 1, 1.0f, rank != 0, sum);
  }
  for (std::uint64_t i = 0; i != count; ++i) result[i] = out[first + i];
  const float* const folded[] = {sum};
  rank_sum_blocks(0, kRankSumBlock, folded, 1, scale, accumulate, result);
  for (std::uint64_t i = 0; i != count; ++i) out[first + i] = result[i];
}

}  // namespace TESSERA_ISA
}  // namespace detail

inline namespace TESSERA_ISA {

/// Adds up the contributions of all ranks, in rank order in fp32, whatever the algorithm that
/// brought them here: with s = (((x0 + x1) + x2) + ...) * scale, out[i] becomes s, or out[i] + s
/// with `accumulate`, rounded to nearest once where it is bf16. `sources` holds `ranks` >= 1
/// pointers to n elements of T; T and O are float or bf16; out may be one of the sources, but may
/// not overlap any otherwise.
template <class T, class O>
void rank_sum(std::uint64_t n, const T* const* sources, int ranks, float scale, bool accumulate,
              O* out) {
  const StrictRounding strict;
  const std::uint64_t whole = n - n % detail::kRankSumBlock;
  if (whole != 0) {
    detail::rank_sum_blocks(std::uint64_t{0}, whole, sources, ranks, scale, accumulate, out);
  }
  if (whole != n) detail::rank_sum_tail(whole, n, sources, ranks, scale, accumulate, out);
}

}  // namespace TESSERA_ISA
}  // namespace tessera
