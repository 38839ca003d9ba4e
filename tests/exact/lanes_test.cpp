#include <tessera/exact/lanes.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

using tessera::Lanes;

namespace {

// In double every operation on floats keeps enough bits that rounding it to fp32 is rounding the
// exact result: Figueroa, "When is double rounding innocuous?", 1995. The quotient of a denormal
// result too, since a tie of 24 bits is no nearer than 2^-48 to a quotient that is not one.
struct Reference {
  double add, sub, mul, div;
  Reference(double a, double b) : add(a + b), sub(a - b), mul(a * b), div(a / b) {}
};

float larger(float a, float b) {
  if (values::is_nan(a) || values::is_nan(b)) return std::nanf("");
  return a < b ? b : a;
}
float smaller(float a, float b) {
  if (values::is_nan(a) || values::is_nan(b)) return std::nanf("");
  return b < a ? b : a;
}
float sign_of(float a) {
  if (values::is_nan(a)) return a;
  return a > 0 ? 1.0f : a < 0 ? -1.0f : 0.0f;
}

/// How many results differ from the reference, in lane `at` of W with other values around it.
template <int W>
int mismatches(float a, float b, int at) {
  float left[W], right[W];
  for (int k = 0; k != W; ++k) {
    left[k] = k == at ? a : 1.5f;
    right[k] = k == at ? b : -0.25f;
  }
  using R = Lanes<W>;
  const R x = R::load(left);
  const R y = R::load(right);
  const auto lane = [at](const R& lanes) {
    float stored[W];
    lanes.store(stored);
    return stored[at];
  };
  const auto exact = [](float p, float q) { return std::memcmp(&p, &q, sizeof p) == 0; };
  const Reference expected(a, b);
  const R one = R::splat(1.0f);
  const R two = R::splat(2.0f);
  int wrong = 0;
  wrong += !values::same(lane(x + y), static_cast<float>(expected.add));
  wrong += !values::same(lane(x - y), static_cast<float>(expected.sub));
  wrong += !values::same(lane(x * y), static_cast<float>(expected.mul));
  wrong += !values::same(lane(x / y), static_cast<float>(expected.div));
  wrong += !values::same(lane(sqrt(x)), static_cast<float>(std::sqrt(static_cast<double>(a))));
  wrong += !values::same(lane(x - x), static_cast<float>(static_cast<double>(a) - a));
  wrong += !values::same(lane(x / x), static_cast<float>(static_cast<double>(a) / a));
  wrong += !exact(lane(-x), std::copysign(a, std::signbit(a) ? 1.0f : -1.0f));
  wrong += !exact(lane(abs(x)), std::copysign(a, 1.0f));
  wrong += !values::same(lane(max(x, y)), larger(a, b));
  wrong += !values::same(lane(min(x, y)), smaller(a, b));
  wrong += !values::same(lane(sign(x)), sign_of(a));
  wrong += !exact(lane(select(less(x, y), one, two)), a < b ? 1.0f : 2.0f);
  wrong += !exact(lane(select(is_nan(x), one, two)), values::is_nan(a) ? 1.0f : 2.0f);
  wrong += !exact(lane(select(less(x, y), x, y)), a < b ? a : b);
  wrong += !exact(lane(select(less(x, y) & less(y, x), one, two)), 2.0f);
  wrong += !exact(lane(select(less(x, y) | less(y, x), one, two)), a < b || b < a ? 1.0f : 2.0f);
  wrong += !exact(lane(select(~less(x, y), one, two)), a < b ? 2.0f : 1.0f);
  wrong += !exact(lane(R::splat(a)), a);
  return wrong;
}

}  // namespace

TEST_CASE_TEMPLATE("lanes round once to nearest even", R, Lanes<1>, Lanes<tessera::kNativeLanes>) {
  constexpr int W = R::width;
  int wrong = 0;
  const std::vector<float> special = values::special_values();
  for (const float a : special) {
    for (const float b : special) {
      for (int at = 0; at != W; ++at) wrong += mismatches<W>(a, b, at);
    }
  }
  values::Source source(42);
  for (int i = 0; i != 200000; ++i) wrong += mismatches<W>(source.any(), source.any(), i % W);
  // Near each other, where sums cancel and products round.
  for (int i = 0; i != 200000; ++i) {
    wrong += mismatches<W>(source.around(0, 3), source.around(0, 3), i % W);
    wrong += mismatches<W>(source.around(-126, 1), source.around(0, 30), i % W);
  }
  CHECK(wrong == 0);
}

TEST_CASE("a product and a sum are not fused") {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 in one rounding; rounded twice it is 0.
  const float a = 1.0f + 0x1p-12f;
  const float b = 1.0f + 0x1p-11f;
  using R = Lanes<tessera::kNativeLanes>;
  float out[tessera::kNativeLanes];
  (R::splat(a) * R::splat(a) - R::splat(b)).store(out);
  CHECK(out[0] == 0.0f);
}
