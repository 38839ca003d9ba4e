#include <tessera/exact/elementwise.hpp>
#include <tessera/exact/split_float.hpp>
#include <tessera/exact/stochastic.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

using tessera::bf16;
using tessera::InOut;
using tessera::InOutSplit;
using tessera::InOutStochastic;
using tessera::RoundingKey;

namespace {

float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

bool comes_back(std::uint32_t bits) {
  const tessera::SplitFloat halves = tessera::split_float(float_of(bits));
  const std::uint32_t back = bits_of(tessera::join_float(halves.high, halves.low));
  if (!tessera::detail::is_nan_bits(bits)) return back == bits;
  return tessera::detail::is_nan_bits(back) &&
         tessera::detail::is_nan_bits(bits_of(tessera::to_float(halves.high)));
}

struct Shift {
  float by;
  template <class R>
  void operator()(R& x) const {
    x = x + R::splat(by);
  }
};
struct Average {
  template <class R>
  void operator()(R& w, R& m) const {
    m = m * R::splat(0.999f) + w * R::splat(0.001f);
    w = w - m * R::splat(0.01f);
  }
};

}  // namespace

TEST_CASE("a float in two halves comes back: a sweep of all patterns, all ties, the edges") {
  std::size_t wrong = 0;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 2459) {
    wrong += comes_back(static_cast<std::uint32_t>(bits)) ? 0 : 1;
  }
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      wrong += comes_back(high << 16 | low) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("the upper half is to nearest, ties away from zero, NaN stays NaN") {
  CHECK(tessera::split_float(float_of(0x3f807fffu)).high.bits == 0x3f80);
  CHECK(tessera::split_float(float_of(0x3f808000u)).high.bits == 0x3f81);
  CHECK(tessera::split_float(float_of(0xbf808000u)).high.bits == 0xbf81);
  CHECK(tessera::split_float(std::numeric_limits<float>::max()).high.bits == 0x7f80);
  CHECK(tessera::split_float(float_of(0x7fffffffu)).high.bits == 0x7fc0);
  CHECK(tessera::split_float(float_of(0x7f800001u)).high.bits == 0x7fc0);
}

TEST_CASE("elementwise over halves gives the bits of fp32, tails included") {
  for (const std::uint64_t n : {1u, 5u, 16u, 33u, 1000u}) {
    std::vector<float> whole = values::values_around(n, n, 0, 20);
    std::vector<bf16> high(n + 1, bf16{7});
    std::vector<std::uint16_t> low(n + 1, 9);
    for (std::size_t i = 0; i < n; ++i) {
      const tessera::SplitFloat halves = tessera::split_float(whole[i]);
      high[i] = halves.high;
      low[i] = halves.low;
    }
    for (int time = 0; time < 3; ++time) {
      tessera::elementwise(n, Shift{0.1f}, InOut<float>{whole.data()});
      tessera::elementwise(n, Shift{0.1f}, InOutSplit{high.data(), low.data()});
    }
    for (std::size_t i = 0; i < n; ++i) CHECK(tessera::join_float(high[i], low[i]) == whole[i]);
    CHECK((high[n].bits == 7 && low[n] == 9));
  }
}

TEST_CASE("stochastic rounding gives a neighbour; what a bf16 holds, inf and NaN stay") {
  for (std::uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
    for (std::uint32_t high = 0; high < 0x10000u; ++high) {
      const float value = float_of(high << 16);
      const std::uint16_t got = tessera::to_bf16_stochastic(value, random).bits;
      if (tessera::detail::is_nan_bits(high << 16)) {
        REQUIRE(got == 0x7fc0);
      } else {
        REQUIRE(got == high);
      }
    }
    CHECK(tessera::to_bf16_stochastic(float_of(0x7fffffffu), random).bits == 0x7fc0);
    CHECK(tessera::to_bf16_stochastic(float_of(0x3f804000u), random).bits ==
          (random >= 0xc000u ? 0x3f81 : 0x3f80));
  }
}

TEST_CASE("the random bits of an element do not depend on where its array begins, or its tail") {
  const std::uint64_t n = 1000;
  const RoundingKey key = tessera::rounding_key(5, 3, 2);
  const std::vector<float> first = values::values_around(n, 1, 0, 4);
  std::vector<bf16> w, m(n, bf16{0});
  for (float value : first) w.push_back(tessera::to_bf16(value));
  std::vector<bf16> w_parts = w, m_parts = m;
  tessera::elementwise(n, Average{}, InOutStochastic<0>{w.data(), key},
                       InOutStochastic<2>{m.data(), key});
  for (std::uint64_t begin = 0; begin < n;) {
    const std::uint64_t count = std::min<std::uint64_t>(n - begin, 1 + begin % 77);
    tessera::elementwise(count, Average{},
                         InOutStochastic<0>{w_parts.data() + begin, key.from(begin)},
                         InOutStochastic<2>{m_parts.data() + begin, key.from(begin)});
    begin += count;
  }
  CHECK(w_parts == w);
  CHECK(m_parts == m);
  for (std::size_t i = 0; i < n; i += 97) {
    const float from = tessera::to_float(tessera::to_bf16(first[i]));
    const float exact = from * 0.001f;
    CHECK(m[i] == tessera::to_bf16_stochastic(exact, key.bits<2>(i)));
  }
}

TEST_CASE("fields, indices, updates, tensors and seeds have independent, uniform bits") {
  const RoundingKey key = tessera::rounding_key(1, 2, 3);
  const RoundingKey others[] = {key.from(1), tessera::rounding_key(1, 2, 4),
                                tessera::rounding_key(1, 3, 3), tessera::rounding_key(2, 2, 3)};
  constexpr int kSamples = 200000;
  const double deviation = std::sqrt(kSamples / 144.0);  // of a sum of products of two uniforms
  const auto uniform = [](std::uint32_t bits) { return (bits + 0.5) / 65536 - 0.5; };
  double mean[5] = {}, product[8] = {};
  for (int i = 0; i < kSamples; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const double fields[] = {uniform(key.bits<0>(at)), uniform(key.bits<1>(at)),
                             uniform(key.bits<2>(at)), uniform(key.bits<3>(at)),
                             uniform(key.bits<4>(at))};
    for (int f = 0; f < 5; ++f) mean[f] += fields[f];
    for (int f = 0; f < 4; ++f) product[f] += fields[f] * fields[f + 1];
    for (int k = 0; k < 4; ++k) product[4 + k] += fields[0] * uniform(others[k].bits<0>(at));
  }
  for (double sum : mean) CHECK(std::fabs(sum) < 4 * std::sqrt(kSamples / 12.0));
  for (double sum : product) CHECK(std::fabs(sum) < 4 * deviation);
}
