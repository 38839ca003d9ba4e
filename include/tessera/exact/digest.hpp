#pragma once

#include <cstdint>

#include "tessera/exact/bf16.hpp"

namespace tessera {

/// A 64-bit hash of a sequence of elements, to compare tensors across runs, ranks and world sizes.
/// It depends on every bit and on every element's position, not on how the sequence was cut into
/// calls; all NaNs count as one. The terms are summed, so pieces may be hashed apart, each from its
/// own position, and merged in any order. Not against an adversary.
class Digest {
 public:
  constexpr Digest() = default;
  /// Continues, or is merged into, a sequence of which others hash the elements before `position`.
  static constexpr Digest starting_at(std::uint64_t position) noexcept {
    Digest digest;
    digest.position_ = position;
    return digest;
  }

  constexpr void update(const float* data, std::uint64_t n) noexcept {
    for (std::uint64_t i = 0; i != n; ++i) {
      const std::uint32_t bits = detail::bits_of(data[i]);
      add(detail::is_nan_bits(bits) ? detail::kQuietNan32 : bits);
    }
  }
  /// Differs from the hash of the same values in fp32.
  constexpr void update(const bf16* data, std::uint64_t n) noexcept {
    for (std::uint64_t i = 0; i != n; ++i) {
      const std::uint32_t bits = data[i].bits;
      add(detail::is_nan_bits(bits << 16) ? detail::kQuietNan32 >> 16 : bits);
    }
  }
  /// Every byte is an element.
  constexpr void update(const unsigned char* data, std::uint64_t n) noexcept {
    for (std::uint64_t i = 0; i != n; ++i) add(data[i]);
  }

  /// Takes over the elements of `other`, which has other positions.
  constexpr void merge(const Digest& other) noexcept {
    sum_ += other.sum_;
    count_ += other.count_;
  }

  /// Elements so far, those merged included.
  constexpr std::uint64_t count() const noexcept { return count_; }
  constexpr std::uint64_t value() const noexcept { return mix(sum_ ^ mix(count_)); }
  friend constexpr bool operator==(const Digest& a, const Digest& b) noexcept {
    return a.value() == b.value();
  }

 private:
  // The finaliser of SplitMix64, a bijection: Steele, Lea and Flood, "Fast splittable pseudorandom
  // number generators", OOPSLA 2014.
  static constexpr std::uint64_t mix(std::uint64_t z) noexcept {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Within 2^32 positions (position, value) is injective, so one changed element always shows.
  constexpr void add(std::uint32_t value) noexcept {
    sum_ += mix((position_ << 32 | value) ^ mix(position_ >> 32));
    ++position_;
    ++count_;
  }

  std::uint64_t sum_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace tessera
