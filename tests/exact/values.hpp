#pragma once
// Floats by their bits, for the tests of exact/ and optimizer/: made without floating-point
// arithmetic, so the same in every build.

#include <cstdint>
#include <cstring>
#include <vector>

#include <tessera/exact/classify.hpp>

namespace values {

inline float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline bool is_nan(float value) {
  return tessera::detail::is_nan_bits(tessera::detail::bits_of(value));
}

/// Equal bits, or both NaN: processors differ in payloads.
inline bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (is_nan(a) && is_nan(b));
}

/// SplitMix64, independent of the library's generator.
class Source {
 public:
  explicit Source(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return bits() % bound; }

  /// Any bit pattern: all magnitudes alike, denormals, infinities and NaN among them.
  float any() { return from_bits(static_cast<std::uint32_t>(bits() >> 32)); }
  /// A magnitude in [2^(middle - spread), 2^(middle + spread)).
  float around(int middle, int spread) {
    const auto random = static_cast<std::uint32_t>(bits() >> 32);
    const int exponent =
        127 + middle - spread + static_cast<int>(below(static_cast<std::uint64_t>(2 * spread)));
    return from_bits((random & 0x807fffffu) | static_cast<std::uint32_t>(exponent) << 23);
  }

 private:
  std::uint64_t state_;
};

inline std::vector<float> any_values(std::uint64_t n, std::uint64_t seed) {
  Source source(seed);
  std::vector<float> values(n);
  for (float& value : values) value = source.any();
  return values;
}

inline std::vector<float> values_around(std::uint64_t n, std::uint64_t seed, int middle,
                                        int spread) {
  Source source(seed);
  std::vector<float> values(n);
  for (float& value : values) value = source.around(middle, spread);
  return values;
}

/// Zeros, denormals, the ends of the ranges, ties of bf16, infinities and NaNs, of either sign.
inline std::vector<float> special_values() {
  std::vector<float> values;
  for (const std::uint32_t bits :
       {0x00000000u, 0x00000001u, 0x00000002u, 0x00007fffu, 0x00008000u, 0x00008001u,
        0x007fffffu, 0x00800000u, 0x00800001u, 0x0c000000u, 0x33800000u, 0x3effffffu,
        0x3f7fffffu, 0x3f800000u, 0x3f800001u, 0x3f808000u, 0x3f818000u, 0x40490fdbu,
        0x4b800000u, 0x5f000000u, 0x7f000000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu,
        0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    values.push_back(from_bits(bits));
    values.push_back(from_bits(bits | 0x80000000u));
  }
  return values;
}

}  // namespace values
