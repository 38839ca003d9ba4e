#pragma once

#include <cstdint>

#include "tessera/exact/config.hpp"
#include "tessera/exact/normal_quantile.hpp"

namespace tessera {

/// 128 bits, as counter or result of `philox4x32`, least significant word first.
struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Philox4x32-10, a bijection of counters that is picked by the key: Salmon, Moraes, Dror and Shaw,
/// "Parallel random numbers: as easy as 1, 2, 3", SC 2011. It passes BigCrush, and is the generator
/// of cuRAND and of PyTorch on CUDA.
TESSERA_HD constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint64_t key) noexcept {
  auto key_low = static_cast<std::uint32_t>(key);
  auto key_high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round != 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key_low,
                static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key_high,
                static_cast<std::uint32_t>(a)}};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

/// 64 random bits: a function of its arguments alone, so that any rank can make any element's. By
/// convention `stream` is the tensor and `index` the element's place in the whole tensor.
TESSERA_HD constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream,
                                               std::uint64_t index) noexcept {
  const PhiloxBlock block =
      philox4x32({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                   static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                 seed);
  return std::uint64_t{block.word[1]} << 32 | block.word[0];
}

/// Uniform in [0, 1): a multiple of 2^-24, the upper 24 bits of `random_bits`. Every step is exact.
TESSERA_HD constexpr float random_uniform(std::uint64_t seed, std::uint64_t stream,
                                          std::uint64_t index) noexcept {
  const auto upper = static_cast<std::int32_t>(random_bits(seed, stream, index) >> 40);
  return static_cast<float>(upper) * 0x1p-24f;
}

/// Standard normal, by inversion of the upper 52 bits of `random_bits`: the quantile of
/// (2k + 1) / 2^53, symmetric about 0 and never beyond 8.3. Not by Box and Muller, whose logarithm
/// and cosine differ between maths libraries.
TESSERA_HD inline float random_normal(std::uint64_t seed, std::uint64_t stream,
                                      std::uint64_t index) noexcept {
  return detail::normal_quantile(random_bits(seed, stream, index) >> 12).to_float();
}

}  // namespace tessera
