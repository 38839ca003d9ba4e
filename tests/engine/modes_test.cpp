// Every schedule under reused memory that is poisoned and streams that are delayed at random.
#include "support.hpp"

using namespace engine_test;
using namespace std::chrono_literals;

namespace {

const std::vector<UnitSpec> kModeUnits = {
    {"a", {500}}, {"b", {64, 65}}, {"frozen", {130, 7}, {0, 1}}, {"c", {2000, 0}}, {"d", {1}}};

}  // namespace

TEST_CASE(
    "B042, B044, B051: poisoned and delayed, all strategies, schedules and depths are right") {
  std::uint64_t seed = 0;
  for (const ts::Schedule schedule : {ts::Schedule::overlapped, ts::Schedule::sequential}) {
    for (int depth : {0, 1, 3}) {
      for (std::uint64_t bucket : {0, 900, 6000}) {
        for_each_strategy([&]<class Strategy>() {
          ++seed;
          under_test::run_ranks(3, [&](under_test::Ranks ranks) {
            const ts::Options options{.schedule = schedule,
                                      .prefetch_depth = depth,
                                      .reductions_in_flight = depth,
                                      .bucket_bytes = bucket,
                                      .gathered_bytes = 4000};
            const under_test::RuntimeOptions host{
                .poison = true,
                .jitter = 100us,
                .jitter_seed = seed * 100 + static_cast<std::uint64_t>(ranks.rank())};
            Toy<Strategy> toy(ranks, kModeUnits, options, host);
            toy.whole_step();
            {
              const auto evaluation = toy.model.evaluate();
              toy.forward_all();
            }
            toy.whole_step(2);
            toy.check();
          });
        });
      }
    }
  }
}

TEST_CASE("B042: two delayed runs of one seed give the same bits") {
  const auto digest = [](std::uint64_t seed) {
    std::uint64_t value = 0;
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(ranks, kModeUnits, {.prefetch_depth = 2, .clip_norm = 0.7f},
                           {.poison = true, .jitter = 500us, .jitter_seed = seed});
      for (int s = 0; s < 5; ++s) {
        for (int u = 0; u < toy.count(); ++u) {
          const auto lease = toy.model.forward(toy.unit(u));
        }
        for (int u = toy.count() - 1; u >= 0; --u) {
          auto lease = toy.model.backward(toy.unit(u));
          toy.write_gradients(u, lease, s);
        }
        toy.model.step();
      }
      const std::uint64_t mine = toy.model.parameters_digest() ^ toy.model.moments_digest();
      if (ranks.rank() == 0) value = mine;
    });
    return value;
  };
  const std::uint64_t first = digest(1);
  CHECK(digest(1) == first);
  CHECK(digest(77) == first);
}

TEST_CASE("P050: 0, 1, 2 or 9 reductions in flight: the same numbers, the plan grows") {
  std::uint64_t previous = 0;
  for (int in_flight : {0, 1, 2, 9}) {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<ts::Zero2> toy(ranks, blocks(4), {.reductions_in_flight = in_flight},
                         {.poison = true, .reduce_delay = 2ms});
      for (int s = 0; s < 2; ++s) toy.whole_step();
      toy.check();
      if (ranks.rank() == 0) {
        const std::uint64_t bytes = toy.model.plan().total_bytes();
        CHECK(bytes >= previous);
        previous = bytes;
      }
    });
  }
}

TEST_CASE("P010, P049: three models in one process, one after the other and interleaved") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero1> first(ranks, blocks(2), {}, {.poison = true, .jitter = 200us});
    Toy<ts::Zero2> second(ranks, blocks(3), {}, {.poison = true, .jitter = 200us});
    Toy<ts::Zero3<>> third(ranks, blocks(4), {}, {.poison = true, .jitter = 200us});
    first.whole_step();
    second.whole_step();
    third.whole_step();
    first.forward_all();  // one loss over all three
    second.forward_all();
    third.forward_all();
    for (int u = 3; u >= 0; --u) {
      third.backward(u);
      if (u < 3) second.backward(u);
      if (u < 2) first.backward(u);
    }
    CHECK(reductions(first.step()) == 2);
    CHECK(reductions(second.step()) == 3);
    CHECK(reductions(third.step()) == 4);
    first.check();
    second.check();
    third.check();
  });
}
