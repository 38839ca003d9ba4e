#include <tessera/exact/bf16.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/exact/lanes.hpp>

#include "values.hpp"

using tessera::bf16;

namespace {

static_assert(tessera::to_bf16(1.0f).bits == 0x3f80);
static_assert(tessera::to_float(bf16{0xc000}) == -2.0f);

/// The nearest of the two neighbours, by distances in double; 2^128 stands for infinity.
std::uint16_t nearest_bf16(float x) {
  if (std::isnan(x)) return 0x7fc0;
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t below = bits >> 16;  // towards zero
  if (std::isinf(x)) return static_cast<std::uint16_t>(below);
  const auto magnitude = [](std::uint32_t half) {
    const std::uint32_t exponent = (half >> 7) & 0xffu;
    const double mantissa = half & 0x7fu;
    return exponent == 0 ? std::ldexp(mantissa, -133)
                         : std::ldexp(128 + mantissa, static_cast<int>(exponent) - 134);
  };
  const double value = std::fabs(static_cast<double>(x));
  const double down = value - magnitude(below);
  const double up = magnitude(below + 1) - value;
  const bool round_up = up < down || (up == down && below % 2 == 1);
  return static_cast<std::uint16_t>(below + (round_up ? 1 : 0));
}

template <int W>
int vector_mismatches(const std::vector<float>& floats) {
  int wrong = 0;
  for (std::size_t i = 0; i + W <= floats.size(); i += W) {
    bf16 halves[W];
    tessera::Lanes<W>::load(&floats[i]).store(halves);
    float back[W];
    tessera::Lanes<W>::load(halves).store(back);
    for (std::size_t k = 0; k != W; ++k) {
      const bf16 expected = tessera::to_bf16(floats[i + k]);
      const float widened = tessera::to_float(expected);
      wrong += !(halves[k] == expected) || std::memcmp(&widened, &back[k], 4) != 0;
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("every bf16 survives the way to fp32 and back") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits != 0x10000; ++bits) {
    const bf16 half{static_cast<std::uint16_t>(bits)};
    const float value = tessera::to_float(half);
    std::uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    wrong += wide != bits << 16;
    const bool nan = (bits & 0x7fff) > 0x7f80;
    wrong += tessera::to_bf16(value).bits != (nan ? 0x7fc0 : bits);
  }
  CHECK(wrong == 0);
}

TEST_CASE("fp32 to bf16 rounds to the nearest, ties to even") {
  int wrong = 0;
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 1021) {
    const float x = values::from_bits(static_cast<std::uint32_t>(bits));
    wrong += tessera::to_bf16(x).bits != nearest_bf16(x);
  }
  // Around every tie, where a stride would seldom be.
  for (std::uint64_t half = 0; half != 0x10000; ++half) {
    for (const std::uint32_t offset : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = values::from_bits(static_cast<std::uint32_t>(half << 16) | offset);
      wrong += tessera::to_bf16(x).bits != nearest_bf16(x);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("known bf16 values") {
  CHECK(tessera::to_bf16(values::from_bits(0x3f808000)).bits == 0x3f80);  // tie, down to even
  CHECK(tessera::to_bf16(values::from_bits(0x3f818000)).bits == 0x3f82);  // tie, up to even
  CHECK(tessera::to_bf16(values::from_bits(0x7f7f8000)).bits == 0x7f80);  // overflows to infinity
  CHECK(tessera::to_bf16(values::from_bits(0x7f7f7fff)).bits == 0x7f7f);  // the largest
  CHECK(tessera::to_bf16(values::from_bits(0x80000001)).bits == 0x8000);  // to -0
  CHECK(tessera::to_bf16(values::from_bits(0xff800001)).bits == 0x7fc0);  // a signalling NaN
}

TEST_CASE("lanes convert as scalars do") {
  std::vector<float> floats = values::any_values(1 << 16, 7);
  const std::vector<float> special = values::special_values();
  floats.insert(floats.end(), special.begin(), special.end());
  for (std::uint32_t half = 0; half < 0x10000; half += 3) {
    floats.push_back(values::from_bits(half << 16 | 0x8000u));
  }
  floats.resize(floats.size() / 16 * 16);
  CHECK(vector_mismatches<1>(floats) == 0);
  CHECK(vector_mismatches<tessera::kNativeLanes>(floats) == 0);
}
