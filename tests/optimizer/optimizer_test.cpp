#include <tessera/optimizer/optimizer.hpp>

#include <array>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/codec/raw.hpp>
#include <tessera/optimizer/adamw.hpp>
#include <tessera/optimizer/lion.hpp>
#include <tessera/optimizer/sgd.hpp>

#include "update.hpp"

namespace {

/// A user's optimizer: the example of the concept's documentation.
struct Signum {
  float learning_rate = 1e-3f;
  float weight_decay = 0;
  static constexpr int state_count = 1;
  static constexpr std::array<const char*, 1> state_names{"momentum"};
  struct Clock {};
  void advance(Clock&) const {}
  struct Coefficients {
    float learning_rate;
  };
  Coefficients coefficients(const Clock&, float rate, float) const { return {rate}; }
  const char* validate() const { return nullptr; }
  template <class R>
  static TESSERA_HD void apply(const Coefficients& c, R& weight, const R& gradient, R& state) {
    state = R::splat(0.5f) * state + gradient;
    weight = weight - R::splat(c.learning_rate) * sign(state);
  }
};

struct Stateless : Signum {
  static constexpr int state_count = 0;
  static constexpr std::array<const char*, 0> state_names{};
  template <class R>
  static TESSERA_HD void apply(const Coefficients& c, R& weight, const R& gradient) {
    weight = weight - R::splat(c.learning_rate) * gradient;
  }
};

struct TooFewNames : Signum {
  static constexpr std::array<const char*, 0> state_names{};
};
struct TooFewStates : Signum {
  template <class R>
  static TESSERA_HD void apply(const Coefficients&, R&, const R&) {}
};
struct WritesTheGradient : Signum {
  template <class R>
  static TESSERA_HD void apply(const Coefficients&, R&, R&, R&) {}
};
struct NoClock : Signum {
  void advance() const {}
};

static_assert(tessera::ElementwiseOptimizer<tessera::AdamW>);
static_assert(tessera::ElementwiseOptimizer<tessera::Lion>);
static_assert(tessera::ElementwiseOptimizer<tessera::Sgd>);
static_assert(tessera::ElementwiseOptimizer<Signum>);
static_assert(tessera::ElementwiseOptimizer<Stateless>);
static_assert(!tessera::ElementwiseOptimizer<int>);
static_assert(!tessera::ElementwiseOptimizer<TooFewNames>);
static_assert(!tessera::ElementwiseOptimizer<TooFewStates>);
static_assert(!tessera::ElementwiseOptimizer<WritesTheGradient>);
static_assert(!tessera::ElementwiseOptimizer<NoClock>);

static_assert(tessera::Raw::encoded_bytes(10, 2) == 20);
static_assert(tessera::Raw::encoded_bytes(std::uint64_t{1} << 40, 4) == std::uint64_t{1} << 42);

}  // namespace

TEST_CASE("an optimizer of the user's runs as ours do") {
  Run<Signum> run(Signum{.learning_rate = 0.25f}, {1.0f, 1.0f});
  run.step({3.0f, -1.0f});
  run.step({-1.0f, 0.0f});
  CHECK(run.weights() == std::vector<float>{0.5f, 1.5f});
  CHECK(run.state(0) == std::vector<float>{0.5f, -0.5f});
}
