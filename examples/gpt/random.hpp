// Random numbers by counter: a number depends on what it is for, not on what was drawn before it.
#pragma once

#include <cstdint>

namespace gpt {

/// What a number is for, so that no two uses share numbers under one seed.
enum class Stream : std::uint64_t { batches = 1, text = 2 };

namespace detail {
constexpr std::uint64_t mix(std::uint64_t x) {  // the output function of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
}  // namespace detail

constexpr std::uint64_t random_bits(std::uint64_t seed, Stream stream, std::uint64_t step,
                                    std::uint64_t index = 0) {
  using detail::mix;
  return mix(mix(mix(mix(seed) ^ static_cast<std::uint64_t>(stream)) ^ step) ^ index);
}

/// From 0 to below `count`, by the upper half of a product: the bias is below count / 2^64.
constexpr std::uint64_t below(std::uint64_t count, std::uint64_t bits) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(bits) * count >> 64);
}

/// From 0 to below 1.
constexpr double unit_interval(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace gpt
