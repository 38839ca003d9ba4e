#include <tessera/optimizer/sgd.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "../exact/values.hpp"
#include "update.hpp"

using tessera::Sgd;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string_view problem(const Sgd& optimizer) {
  const char* text = optimizer.validate();
  return text == nullptr ? "" : text;
}

}  // namespace

TEST_CASE("Sgd follows torch.optim.SGD in fp64") {
  for (const Sgd optimizer :
       {Sgd{.learning_rate = 0.1f}, Sgd{.learning_rate = 0.1f, .momentum = 0.9f},
        Sgd{.learning_rate = 0.01f, .momentum = 0.9f, .weight_decay = 0.1f},
        Sgd{.learning_rate = 0.01f, .momentum = 0.5f, .weight_decay = 0.1f, .nesterov = true}}) {
    const std::uint64_t n = 300;
    Run<Sgd> run(optimizer, values::values_around(n, 1, 0, 3));
    std::vector<double> w(run.weights().begin(), run.weights().end());
    std::vector<double> buffer(n);
    std::vector<double> travelled(n);
    for (std::uint64_t step = 1; step <= 100; ++step) {
      const std::vector<float> gradient = values::values_around(n, step, -4, 4);
      run.step(gradient);
      for (std::uint64_t i = 0; i != n; ++i) {
        const double mu = optimizer.momentum;
        const double g = gradient[i] + static_cast<double>(optimizer.weight_decay) * w[i];
        buffer[i] = step == 1 ? g : mu * buffer[i] + g;  // torch: the first buffer is a copy
        const double direction = mu == 0 ? g : optimizer.nesterov ? g + mu * buffer[i] : buffer[i];
        w[i] -= static_cast<double>(optimizer.learning_rate) * direction;
        travelled[i] += std::fabs(static_cast<double>(optimizer.learning_rate) * direction);
      }
    }
    double worst = 0;
    for (std::uint64_t i = 0; i != n; ++i) {
      const double tolerance = 100 * 0x1p-24 * (std::fabs(w[i]) + 2 * travelled[i]);
      worst = std::fmax(worst, std::fabs(run.weights()[i] - w[i]) / tolerance);
    }
    CHECK(worst < 1);
  }
}

TEST_CASE("small numbers by hand") {
  Run<Sgd> plain(Sgd{.learning_rate = 0.5f, .momentum = 0.5f, .weight_decay = 0.25f}, {4.0f});
  plain.step({2.0f});  // d = 3, b = 3
  CHECK(plain.weights()[0] == 2.5f);
  CHECK(plain.state(0)[0] == 3.0f);
  plain.step({1.0f});  // d = 1.625, b = 3.125
  CHECK(plain.weights()[0] == 0.9375f);
  Run<Sgd> nesterov(
      Sgd{.learning_rate = 0.5f, .momentum = 0.5f, .weight_decay = 0.25f, .nesterov = true},
      {4.0f});
  nesterov.step({2.0f});  // d = 3, b = 3, d + b / 2 = 4.5
  CHECK(nesterov.weights()[0] == 1.75f);
}

TEST_CASE("Sgd names the hyperparameter that is wrong") {
  CHECK(problem({}) == "");
  CHECK(problem({.momentum = 0.9f, .nesterov = true}) == "");
  CHECK(problem({.learning_rate = kNan}) == "Sgd: learning_rate is not in [0, inf)");
  CHECK(problem({.momentum = 1}) == "Sgd: momentum is not in [0, 1)");
  CHECK(problem({.weight_decay = -1}) == "Sgd: weight_decay is not in [0, inf)");
  CHECK(problem({.nesterov = true}) == "Sgd: nesterov needs momentum > 0");
  CHECK(problem({.momentum = -0.0f, .nesterov = true}) == "Sgd: nesterov needs momentum > 0");
}
