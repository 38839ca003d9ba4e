#include <tessera/optimizer/adamw.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "../exact/values.hpp"
#include "update.hpp"

using tessera::AdamW;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// torch.optim.AdamW (single tensor, no amsgrad), in double.
struct TorchAdamW {
  double lr, beta1, beta2, eps, decay;
  int step = 0;
  std::vector<double> w, m, v;

  TorchAdamW(const AdamW& o, const std::vector<float>& weights)
      : lr(o.learning_rate),
        beta1(o.beta1),
        beta2(o.beta2),
        eps(o.epsilon),
        decay(o.weight_decay),
        w(weights.begin(), weights.end()),
        m(weights.size()),
        v(weights.size()) {}

  void update(const std::vector<float>& gradient) {
    ++step;
    const double correction1 = 1 - std::pow(beta1, step);
    const double correction2 = 1 - std::pow(beta2, step);
    for (std::size_t i = 0; i != w.size(); ++i) {
      const double g = gradient[i];
      w[i] *= 1 - lr * decay;
      m[i] += (g - m[i]) * (1 - beta1);
      v[i] = v[i] * beta2 + (1 - beta2) * g * g;
      const double denominator = std::sqrt(v[i]) / std::sqrt(correction2) + eps;
      w[i] -= lr / correction1 * (m[i] / denominator);
    }
  }
};

std::string_view problem(const AdamW& optimizer) {
  const char* text = optimizer.validate();
  return text == nullptr ? "" : text;
}

}  // namespace

TEST_CASE("AdamW follows torch.optim.AdamW in fp64") {
  for (const AdamW optimizer :
       {AdamW{}, AdamW{.learning_rate = 3e-4f, .beta2 = 0.95f, .weight_decay = 0.1f},
        AdamW{.learning_rate = 1e-2f, .beta1 = 0, .epsilon = 1e-3f, .weight_decay = 1}}) {
    const std::uint64_t n = 777;
    Run<AdamW> run(optimizer, values::values_around(n, 1, -2, 3));
    TorchAdamW torch(optimizer, run.weights());
    std::vector<double> travelled(n);
    for (std::uint64_t step = 1; step <= 200; ++step) {
      const std::vector<float> gradient = values::values_around(n, step, -6, 3);
      const std::vector<double> before = torch.w;
      run.step(gradient);
      torch.update(gradient);
      for (std::uint64_t i = 0; i != n; ++i) travelled[i] += std::fabs(torch.w[i] - before[i]);
    }
    double worst = 0;
    for (std::uint64_t i = 0; i != n; ++i) {
      // 200 roundings of w, at half a unit of its size each, and 13 roundings of each update.
      const double size = std::fabs(torch.w[i]) + travelled[i];
      const double tolerance = 200 * 0x1p-24 * size + 40 * 0x1p-24 * travelled[i];
      worst = std::fmax(worst, std::fabs(run.weights()[i] - torch.w[i]) / tolerance);
      worst = std::fmax(worst, std::fabs(run.state(1)[i] / torch.v[i] - 1) / 1e-4);
    }
    CHECK(worst < 1);
  }
}

TEST_CASE("the first step moves every weight by the learning rate") {
  // m / (1 - beta1) is g and v / (1 - beta2) is g^2, whatever the betas.
  const std::vector<float> gradient = {3.0f, -0.5f, 1e-3f, -700.0f, 0.0f};
  Run<AdamW> run(AdamW{.learning_rate = 0.125f}, std::vector<float>(5));
  run.step(gradient);
  for (std::size_t i = 0; i != 4; ++i) {
    const double expected = -0.125 * gradient[i] / (std::fabs(gradient[i]) + 1e-8);
    CHECK(std::fabs(run.weights()[i] / expected - 1) < 2e-6);
  }
  CHECK(run.weights()[4] == 0.0f);
}

TEST_CASE("weight decay is decoupled from the gradient") {
  Run<AdamW> run(AdamW{.learning_rate = 0.5f, .weight_decay = 0.25f}, {8.0f, -16.0f});
  run.step({0.0f, 0.0f});
  CHECK(run.weights() == std::vector<float>{7.0f, -14.0f});
  CHECK(run.state(0) == std::vector<float>{0.0f, 0.0f});
}

TEST_CASE("a decay below the precision of 1 - lr weight_decay still acts") {
  // 1 - 2e-8 is 1 in fp32; 2e-8 of a weight, added to an update of its size, is not lost.
  const AdamW optimizer{.learning_rate = 1e-5f, .weight_decay = 2e-3f};
  CHECK(optimizer.coefficients({.5, .5}, 1e-5f, 2e-3f).decay == doctest::Approx(2e-8));
}

TEST_CASE("the clock is the power of the betas") {
  const AdamW optimizer;
  AdamW::Clock clock;
  for (int step = 1; step <= 20000; ++step) optimizer.advance(clock);
  CHECK(clock.beta1_power == doctest::Approx(std::pow(0.9f, 20000.0)));
  CHECK(clock.beta2_power ==
        doctest::Approx(std::pow(static_cast<double>(0.999f), 20000.0)).epsilon(1e-11));
  const auto late = optimizer.coefficients(clock, 1.0f, 0.0f);
  CHECK(late.step_size == 1.0f);
  CHECK(late.root_scale == doctest::Approx(1.0));
}

TEST_CASE("learning rate and decay of a group are those passed") {
  const AdamW optimizer{.learning_rate = 1, .weight_decay = 1};
  AdamW::Clock clock;
  optimizer.advance(clock);
  const auto c = optimizer.coefficients(clock, 0.5f, 0.125f);
  CHECK(c.decay == 0.0625f);
  CHECK(c.step_size == static_cast<float>(0.5 / (1 - static_cast<double>(0.9f))));
  CHECK(c.one_minus_beta2 == static_cast<float>(1 - static_cast<double>(0.999f)));
}

TEST_CASE("infinite and NaN gradients reach the weight") {
  Run<AdamW> run(AdamW{}, {1.0f, 1.0f, 1.0f});
  run.step({kInfinity, kNan, 1.0f});
  CHECK(values::is_nan(run.weights()[0]));
  CHECK(values::is_nan(run.weights()[1]));
  CHECK(run.weights()[2] < 1.0f);
}

TEST_CASE("AdamW names the hyperparameter that is wrong") {
  CHECK(problem({}) == "");
  CHECK(problem({.learning_rate = 0, .beta1 = 0, .beta2 = 0, .epsilon = 0}) == "");
  CHECK(problem({.learning_rate = -0.0f}) == "");
  for (const float bad : {-1e-3f, kNan, kInfinity, -kInfinity}) {
    CHECK(problem({.learning_rate = bad}) == "AdamW: learning_rate is not in [0, inf)");
    CHECK(problem({.epsilon = bad}) == "AdamW: epsilon is not in [0, inf)");
    CHECK(problem({.weight_decay = bad}) == "AdamW: weight_decay is not in [0, inf)");
    CHECK(problem({.beta1 = bad}) == "AdamW: beta1 is not in [0, 1)");
    CHECK(problem({.beta2 = bad}) == "AdamW: beta2 is not in [0, 1)");
  }
  CHECK(problem({.beta1 = 1}) == "AdamW: beta1 is not in [0, 1)");
  CHECK(problem({.beta2 = 1.5f}) == "AdamW: beta2 is not in [0, 1)");
  static_assert(AdamW{}.validate() == nullptr);
}
