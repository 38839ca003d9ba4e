// Memory of reduced gradients that the caller uses in between: what it writes there harms nothing.
#include <limits>

#include "support.hpp"

using namespace engine_test;

namespace {

constexpr int kUnits = 4;

/// Fills the unit's idle memory with NaN, as floats.
template <class Strategy>
std::size_t spoil(Toy<Strategy>& toy, int u) {
  const std::span<std::byte> idle = toy.model.idle_memory(toy.unit(u));
  const std::size_t floats = idle.size() / sizeof(float);
  if (floats > 0) {
    under_test::write(reinterpret_cast<float*>(idle.data()),
                      std::vector<float>(floats, std::numeric_limits<float>::quiet_NaN()));
  }
  return idle.size();
}

}  // namespace

TEST_CASE("idle memory may be written from step() to the close of the unit's backward lease") {
  for_each_strategy([]<class Strategy>() {
    for (const int world : {2, 3}) {
      under_test::run_ranks(world, [](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, blocks(kUnits, 300), {.clip_norm = 0});
        for (int step = 0; step < 3; ++step) {
          for (int u = 0; u < kUnits; ++u) {
            CHECK(spoil(toy, u) > 0);
            toy.forward(u);
            (void)spoil(toy, u);
          }
          for (int u = kUnits - 1; u >= 0; --u) {
            auto lease = toy.model.backward(toy.unit(u));
            toy.write_gradients(u, lease);
            (void)spoil(toy, u);
            lease.close();
            toy.expect_gradients(u);
          }
          CHECK(!toy.step().skipped);
          toy.check();
        }
      });
    }
  });
}

TEST_CASE("idle memory is a rank's part of the reduced gradients, or nothing") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, {{"a", {1024}}, {"frozen", {1024}, {0}}});
    CHECK(toy.model.idle_memory(toy.unit(0)).size() == 512 * sizeof(float));
    CHECK(toy.model.idle_memory(toy.unit(1)).empty());
    CHECK_THROWS_WITH_AS((void)toy.model.idle_memory(ts::Unit{7}),
                         doctest::Contains("there is no unit 7"), ts::Error);
  });
  // At one rank gradients are written where they stay.
  Toy<ts::Zero3<>> alone(under_test::Ranks(), blocks(1));
  CHECK(alone.model.idle_memory(alone.unit(0)).empty());
}
