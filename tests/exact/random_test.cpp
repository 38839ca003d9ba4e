#include <tessera/exact/random.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

namespace {

static_assert(tessera::random_uniform(1, 2, 3) >= 0.0f);

void check_block(tessera::PhiloxBlock counter, std::uint64_t key, tessera::PhiloxBlock expected) {
  const tessera::PhiloxBlock got = tessera::philox4x32(counter, key);
  for (int i = 0; i != 4; ++i) CHECK(got.word[i] == expected.word[i]);
}

/// P(X <= x) of the standard normal, with a small relative error in both tails.
double normal_probability(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }

}  // namespace

TEST_CASE("philox4x32 has the known answers of Random123") {
  check_block({{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  check_block({{~0u, ~0u, ~0u, ~0u}}, ~std::uint64_t{0},
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  check_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822u,
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("random_bits depends on every bit of its arguments") {
  const std::uint64_t base = tessera::random_bits(5, 6, 7);
  for (int bit = 0; bit != 64; ++bit) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    for (const std::uint64_t other :
         {tessera::random_bits(5 ^ flip, 6, 7), tessera::random_bits(5, 6 ^ flip, 7),
          tessera::random_bits(5, 6, 7 ^ flip)}) {
      const int changed = __builtin_popcountll(base ^ other);
      CHECK(changed > 12);  // 32 are expected, and 12 is five standard deviations below
      CHECK(changed < 52);
    }
  }
  CHECK(tessera::random_bits(0, 0, 0) == 0xe169c58d6627e8d5u);
}

TEST_CASE("random_uniform is uniform") {
  constexpr int kSamples = 1 << 20;
  constexpr int kBins = 256;
  std::vector<int> bins(kBins);
  double sum = 0;
  for (int i = 0; i != kSamples; ++i) {
    const float u = tessera::random_uniform(3, 1, static_cast<std::uint64_t>(i));
    REQUIRE(u >= 0.0f);
    REQUIRE(u < 1.0f);
    REQUIRE(std::ldexp(u, 24) == std::floor(std::ldexp(u, 24)));
    ++bins[static_cast<std::size_t>(u * kBins)];
    sum += u;
  }
  double chi_squared = 0;
  const double expected = static_cast<double>(kSamples) / kBins;
  for (const int count : bins) chi_squared += (count - expected) * (count - expected) / expected;
  CHECK(std::fabs(sum / kSamples - 0.5) < 5 * std::sqrt(1.0 / 12 / kSamples));
  CHECK(std::fabs(chi_squared - 255) < 5 * std::sqrt(2.0 * 255));
}

TEST_CASE("strict_log agrees with the library's") {
  values::Source source(1);
  double worst = 0;
  for (int i = 0; i != 200000; ++i) {
    const double x = std::ldexp(static_cast<double>((source.bits() >> 11) | 1u),
                                -53 - static_cast<int>(source.below(60)));
    const double expected = std::log(x);
    if (expected == 0) continue;
    worst = std::fmax(worst, std::fabs(tessera::detail::strict_log(x).x / expected - 1));
  }
  CHECK(worst < 1e-15);
}

TEST_CASE("normal_quantile inverts the normal distribution, tails included") {
  const auto worst_error = [](std::uint64_t k) {
    const double p = std::ldexp(static_cast<double>(2 * k + 1), -53);
    const double x = tessera::detail::normal_quantile(k).x;
    // The error of x, from that of p and the density at x.
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    const double error = x < 0 ? normal_probability(x) - p : normal_probability(-x) - (1 - p);
    return std::fabs(error / density) / std::fmax(1, std::fabs(x));
  };
  double worst = 0;
  for (int shift = 0; shift != 52; ++shift) {
    for (std::uint64_t step = 0; step != 64; ++step) {
      const std::uint64_t k = (std::uint64_t{64} + step) << shift >> 6;
      worst = std::fmax(worst, worst_error(k));
      const std::uint64_t mirrored = (std::uint64_t{1} << 52) - 1 - k;
      CHECK(tessera::detail::normal_quantile(mirrored).x == -tessera::detail::normal_quantile(k).x);
    }
  }
  CHECK(worst < 2e-7);
  CHECK(tessera::detail::normal_quantile(0).x < -8.2);
  CHECK(tessera::detail::normal_quantile(0).x > -8.3);
}

TEST_CASE("random_normal has the moments and tails of the normal distribution") {
  constexpr int kSamples = 1 << 20;
  double moments[5] = {};
  int beyond[5] = {};
  double product = 0;
  float previous = 0;
  for (int i = 0; i != kSamples; ++i) {
    const float x = tessera::random_normal(17, 4, static_cast<std::uint64_t>(i));
    double power = 1;
    for (double& moment : moments) {
      moment += power / kSamples;
      power *= x;
    }
    for (int k = 1; k != 5; ++k) beyond[k] += std::fabs(x) > static_cast<float>(k);
    product += static_cast<double>(x) * previous / kSamples;
    previous = x;
  }
  // Five standard errors: var X^k = E X^2k - (E X^k)^2.
  const double unit = 5 / std::sqrt(static_cast<double>(kSamples));
  CHECK(std::fabs(moments[1]) < unit);
  CHECK(std::fabs(moments[2] - 1) < unit * std::sqrt(2.0));
  CHECK(std::fabs(moments[3]) < unit * std::sqrt(15.0));
  CHECK(std::fabs(moments[4] - 3) < unit * std::sqrt(96.0));
  CHECK(std::fabs(product) < unit);
  for (int k = 1; k != 5; ++k) {
    const double expected = 2 * normal_probability(-k) * kSamples;
    CHECK(std::fabs(beyond[k] - expected) < 5 * std::sqrt(expected));
  }
}
