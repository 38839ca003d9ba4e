#include <tessera/exact/elementwise.hpp>

#include <cfenv>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

using tessera::bf16;
using tessera::In;
using tessera::InOut;
using tessera::Lanes;
using tessera::Out;

namespace {

struct MultiplyAdd {
  float factor;
  template <class R>
  void operator()(const R& x, const R& half, R& sum, R& out, R& out_half) const {
    sum = sum + R::splat(factor) * x;
    out = out + x / sum;  // out starts at zero
    out_half = half * sqrt(x) - sum;
  }
};

bool all_same(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i != a.size(); ++i) {
    if (!values::same(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

}  // namespace

TEST_CASE("elementwise gives every element the bits of a single lane, whatever the length") {
  constexpr std::uint64_t kMost = 133;
  constexpr std::uint64_t kGuard = 20;
  const std::vector<float> x = values::any_values(kMost, 1);
  std::vector<bf16> half(kMost);
  for (std::uint64_t i = 0; i != kMost; ++i) half[i] = tessera::to_bf16(x[kMost - 1 - i]);
  const MultiplyAdd f{0.7f};
  for (std::uint64_t n = 0; n <= kMost; ++n) {
    std::vector<float> sum = values::any_values(n + kGuard, 2);
    std::vector<float> out = values::any_values(n + kGuard, 3);
    std::vector<bf16> out_half(n + kGuard, bf16{0x1234});
    std::vector<float> expected_sum = sum;
    std::vector<float> expected_out = out;
    std::vector<bf16> expected_half = out_half;
    for (std::uint64_t i = 0; i != n; ++i) {
      using R = Lanes<1>;
      R sums = R::load(&sum[i]);
      R outs = R::splat(0);
      R halves = R::splat(0);
      f(R::load(&x[i]), R::load(&half[i]), sums, outs, halves);
      sums.store(&expected_sum[i]);
      outs.store(&expected_out[i]);
      halves.store(&expected_half[i]);
    }
    tessera::elementwise(n, f, In<float>{x.data()}, In<bf16>{half.data()}, InOut<float>{sum.data()},
                         Out<float>{out.data()}, Out<bf16>{out_half.data()});
    REQUIRE(all_same(sum, expected_sum));
    REQUIRE(all_same(out, expected_out));
    REQUIRE(out_half == expected_half);
  }
}

TEST_CASE("an output may be an input") {
  for (const std::uint64_t n : {1u, 5u, 16u, 67u}) {
    const std::vector<float> x = values::values_around(n, 5, 0, 4);
    std::vector<float> in_place = x;
    std::vector<float> apart(n);
    const auto f = [](const auto& a, auto& b) { b = a * a + a; };
    tessera::elementwise(n, f, In<float>{x.data()}, Out<float>{apart.data()});
    tessera::elementwise(n, f, In<float>{in_place.data()}, Out<float>{in_place.data()});
    CHECK(in_place == apart);
  }
}

TEST_CASE("no elements need no memory") {
  tessera::elementwise(
      0, [](const auto& a, auto& b) { b = a; }, In<float>{nullptr}, Out<bf16>{nullptr});
}

TEST_CASE("elementwise rounds to nearest under any control register, and restores it") {
  const std::uint64_t n = 1003;
  const std::vector<float> a = values::values_around(n, 1, -80, 60);  // products underflow
  const std::vector<float> b = values::values_around(n, 2, -40, 30);
  const auto f = [](const auto& x, const auto& y, auto& product) { product = x * y + x; };
  std::vector<float> expected(n);
  std::vector<float> got(n);
  tessera::elementwise(n, f, In<float>{a.data()}, In<float>{b.data()}, Out<float>{expected.data()});
  std::fesetround(FE_UPWARD);
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  const unsigned flushing = before | 0x8040;
  _mm_setcsr(flushing);
#endif
  tessera::elementwise(n, f, In<float>{a.data()}, In<float>{b.data()}, Out<float>{got.data()});
#if defined(__SSE2__)
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  CHECK(after == flushing);
#endif
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  CHECK(mode == FE_UPWARD);
  CHECK(all_same(got, expected));
}

TEST_CASE("StrictRounding keeps denormals and rounds to nearest while it lives") {
  volatile float tiny = 0x1p-126f;
  volatile float half = 0.5f;
  volatile float one = 1.0f;
  volatile float less_than_half_a_unit = 0x1p-26f;
  std::fesetround(FE_UPWARD);
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
#endif
  float product;
  float sum;
  {
    const tessera::StrictRounding guard;
    product = tiny * half;
    sum = one + less_than_half_a_unit;
  }
  const float flushed = tiny * half;
#if defined(__SSE2__)
  _mm_setcsr(before);
#endif
  std::fesetround(FE_TONEAREST);
  CHECK(product == 0x1p-127f);
  CHECK(sum == 1.0f);
#if defined(__SSE2__)
  CHECK(flushed < 0x1p-127f);
#else
  CHECK(flushed == product);
#endif
}
