#include <tessera/optimizer/lion.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "../exact/values.hpp"
#include "update.hpp"

using tessera::Lion;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string_view problem(const Lion& optimizer) {
  const char* text = optimizer.validate();
  return text == nullptr ? "" : text;
}

}  // namespace

TEST_CASE("Lion follows algorithm 2 of the paper in fp64") {
  const Lion optimizer{.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f};
  const std::uint64_t n = 500;
  Run<Lion> run(optimizer, values::values_around(n, 1, 0, 3));
  std::vector<double> w(run.weights().begin(), run.weights().end());
  std::vector<double> m(n);
  const double lr = 1e-3f;
  const double decay = 0.1f;
  const double beta1 = 0.9f;
  const double beta2 = 0.99f;
  double worst = 0;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    const std::vector<float> gradient = values::values_around(n, step, -4, 4);
    run.step(gradient);
    for (std::uint64_t i = 0; i != n; ++i) {
      const double c = beta1 * m[i] + (1 - beta1) * gradient[i];
      // No fp32 sign is in doubt: c is far from 0 compared to its rounding.
      REQUIRE(std::fabs(c) > 1e-6 * (std::fabs(m[i]) + std::fabs(gradient[i])));
      w[i] -= lr * ((c > 0 ? 1 : -1) + decay * w[i]);
      m[i] = beta2 * m[i] + (1 - beta2) * gradient[i];
      const double tolerance = 0x1p-24 * static_cast<double>(step) * (std::fabs(w[i]) + 0.2);
      worst = std::fmax(worst, std::fabs(run.weights()[i] - w[i]) / tolerance);
    }
  }
  CHECK(worst < 1);
}

TEST_CASE("Lion moves by the learning rate in the direction of the sign") {
  Run<Lion> run(Lion{.learning_rate = 0.25f}, {1.0f, 1.0f, 1.0f, 1.0f, 1.0f});
  run.step({1e-30f, -1e30f, 0.0f, -0.0f, kNan});
  CHECK(run.weights()[0] == 0.75f);
  CHECK(run.weights()[1] == 1.25f);
  CHECK(run.weights()[2] == 1.0f);
  CHECK(run.weights()[3] == 1.0f);
  CHECK(values::is_nan(run.weights()[4]));
}

TEST_CASE("the sign comes before the momentum is updated") {
  // beta1 = 0 looks at the gradient only, beta1 near 1 at the momentum of the step before.
  Run<Lion> run(Lion{.learning_rate = 1, .beta1 = 0.875f, .beta2 = 0.5f}, {0.0f});
  run.step({4.0f});
  CHECK(run.weights()[0] == -1.0f);
  CHECK(run.state(0)[0] == 2.0f);
  run.step({-8.0f});  // 0.875 * 2 - 0.125 * 8 is positive
  CHECK(run.weights()[0] == -2.0f);
  CHECK(run.state(0)[0] == -3.0f);
}

TEST_CASE("Lion decays weights apart from the gradient") {
  Run<Lion> run(Lion{.learning_rate = 0.5f, .weight_decay = 0.25f}, {8.0f});
  run.step({0.0f});
  CHECK(run.weights()[0] == 7.0f);
}

TEST_CASE("Lion names the hyperparameter that is wrong") {
  CHECK(problem({}) == "");
  CHECK(problem({.learning_rate = kNan}) == "Lion: learning_rate is not in [0, inf)");
  CHECK(problem({.beta1 = 1}) == "Lion: beta1 is not in [0, 1)");
  CHECK(problem({.beta2 = -0.5f}) == "Lion: beta2 is not in [0, 1)");
  CHECK(problem({.weight_decay = -1}) == "Lion: weight_decay is not in [0, inf)");
}
