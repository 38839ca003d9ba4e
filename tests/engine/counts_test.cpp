// How many collectives a step takes, and how many bytes they carry.
#include "support.hpp"

using namespace engine_test;

namespace {

// Every kind but gathers, reductions and one exchange of the norm's tree: none.
void check_nothing_else(const ts::StepReport& report) {
  CHECK(count_of(report, ts::CollectiveKind::broadcast) == 0);
  CHECK(count_of(report, ts::CollectiveKind::scalars) == 1);
}

template <class Strategy>
void expect_counts(std::vector<UnitSpec> specs, std::uint64_t gather_count,
                   std::uint64_t reduction_count, int micro_steps = 1, ts::Options options = {}) {
  under_test::run_ranks(2, [&](under_test::Ranks ranks) {
    Toy<Strategy> toy(ranks, specs, options);
    for (int s = 0; s < 3; ++s) {
      const ts::StepReport report = toy.whole_step(micro_steps);
      CHECK(gathers(report) == gather_count);
      CHECK(reductions(report) == reduction_count);
      check_nothing_else(report);
    }
    toy.check();
  });
}

}  // namespace

TEST_CASE("P024: n blocks and a root: n + 1 gathers forward, n + 1, n or 0 backward") {
  constexpr int kBlocks = 3;
  std::vector<UnitSpec> units = blocks_and_root(kBlocks);
  SUBCASE("after forward") { expect_counts<ts::Zero3<>>(units, 2 * (kBlocks + 1), kBlocks + 1); }
  SUBCASE("after forward, the root kept until after backward") {
    units[0].options.override_reshard = true;
    units[0].options.reshard = ts::Reshard::after_backward;
    expect_counts<ts::Zero3<>>(units, 2 * kBlocks + 1, kBlocks + 1);
  }
  SUBCASE("after backward") { expect_counts<Keep>(units, kBlocks + 1, kBlocks + 1); }
  SUBCASE("Zero2 and Zero1") {
    expect_counts<ts::Zero2>(units, kBlocks + 1, kBlocks + 1);
    expect_counts<ts::Zero1>(units, kBlocks + 1, kBlocks + 1);
  }
  SUBCASE("Replicate gathers sums, not parameters") {
    expect_counts<ts::Replicate>(units, kBlocks + 1, kBlocks + 1);
  }
}

TEST_CASE("P024, P025: counts are the same under both schedules and at any depth") {
  for (int depth : {0, 1, 2, 3}) {
    ts::Options options{.prefetch_depth = depth, .reductions_in_flight = depth};
    expect_counts<ts::Zero3<>>(blocks(5), 10, 5, 1, options);
    options.schedule = ts::Schedule::sequential;
    expect_counts<ts::Zero3<>>(blocks(5), 10, 5, 1, options);
  }
}

TEST_CASE("P060: gathers of 3 micro-steps: 24, 12, 4 if kept, 10 if only the root is kept") {
  std::vector<UnitSpec> units = blocks_and_root(3);
  SUBCASE("24") { expect_counts<ts::Zero3<>>(units, 24, 12, 3); }
  SUBCASE("12") { expect_counts<Keep>(units, 12, 12, 3); }
  SUBCASE("4, by the strategy") { expect_counts<ts::Zero2>(units, 4, 12, 3); }
  SUBCASE("4, by every unit's own rule") {
    for (UnitSpec& unit : units) {
      unit.options.override_reshard = true;
      unit.options.reshard = ts::Reshard::after_step;
    }
    expect_counts<Keep>(units, 4, 12, 3);
  }
  SUBCASE("10") {
    units[0].options.override_reshard = true;
    units[0].options.reshard = ts::Reshard::after_step;
    expect_counts<Keep>(units, 10, 12, 3);
  }
  SUBCASE("4, by a budget for everything") {
    expect_counts<ts::ByBudget>(units, 4, 12, 3, {.gathered_bytes = 1 << 20});
  }
  SUBCASE("24, by a budget of nothing") { expect_counts<ts::ByBudget>(units, 24, 12, 3); }
}

TEST_CASE("P058, B027: reductions of 3 micro-steps: 4 if held back, 10 for the root, 8 for two") {
  // The unit at place p is held back until the last micro-step where held[p].
  const auto expect = [](std::vector<bool> held, std::uint64_t reduction_count) {
    under_test::run_ranks(4, [&](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(ranks, blocks(4), {.accumulation = ts::Accumulation::reduce_once});
      for (int s = 0; s < 2; ++s) {
        for (int micro = 0; micro < 3; ++micro) {
          toy.forward_all();
          for (int u = 3; u >= 0; --u) {
            if (micro < 2 && held[static_cast<std::size_t>(u)]) {
              const auto scope = toy.model.accumulate();
              toy.backward(u, micro);
            } else {
              toy.backward(u, micro);
            }
          }
        }
        const ts::StepReport report = toy.step();
        CHECK(reductions(report) == reduction_count);
        check_nothing_else(report);
      }
      toy.check();
    });
  };
  expect({true, true, true, true}, 4);
  expect({true, false, false, false}, 10);
  expect({false, true, true, false}, 8);
  expect({false, false, false, false}, 12);
}

TEST_CASE("P011, P144, B036: one rank by itself sends nothing and keeps its API") {
  for_each_strategy([]<class Strategy>() {
    Toy<Strategy> toy(under_test::Ranks(), blocks_and_root(3), {.gathered_bytes = 1 << 20});
    const float* address = nullptr;
    for (int s = 0; s < 3; ++s) {
      CHECK(toy.whole_step().collectives == ts::CollectiveCounts{});
      const auto lease = toy.model.forward(toy.unit(1));
      if (address == nullptr) address = toy.tensor(1).data();
      CHECK(address == toy.tensor(1).data());  // the view is the state itself
    }
    toy.check();
    CHECK(toy.model.plan().collectives == ts::CollectiveCounts{});
    CHECK(toy.model.plan().memory[1].bytes == 0);  // nothing is kept gathered beside the state
  });
}

TEST_CASE("bytes: the closed formulae hold, and the plan says so in advance") {
  // Psi: all parameters with padding, in bytes of fp32; a rank receives (N - 1) / N of full
  // buffers. Per micro-step, Zero3 gathers twice and reduces once; keep gathers once; Zero1 and
  // Zero2 gather once a step; DDP reduces and gathers once.
  const std::vector<UnitSpec> units = {{"a", {1000}}, {"b", {64, 3}}, {"c", {511}}, {"d", {1}}};
  for (int world : {2, 3, 4, 7}) {
    const auto n = static_cast<std::uint64_t>(world);
    std::uint64_t psi = 0;
    for (std::uint64_t used : {1024, 128, 512, 64}) {
      psi += ts::layout::round_up((used + n - 1) / n, 64) * n * 4;
    }
    const auto expect = [&]<class Strategy>(int micro_steps, std::uint64_t gathered,
                                            std::uint64_t reduced) {
      under_test::run_ranks(world, [&](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, units);
        for (int s = 0; s < 2; ++s) {
          const ts::StepReport report = toy.whole_step(micro_steps);
          CHECK(report.collectives[ts::CollectiveKind::all_gather].bytes == gathered * (n - 1) / n);
          CHECK(report.collectives[ts::CollectiveKind::reduce_scatter].bytes ==
                reduced * (n - 1) / n);
          if (micro_steps == 1) CHECK(report.collectives == toy.model.plan().collectives);
        }
      });
    };
    for (int a : {1, 3}) {
      const auto steps = static_cast<std::uint64_t>(a);
      expect.template operator()<ts::Replicate>(a, psi, steps * psi);
      expect.template operator()<ts::Zero1>(a, psi, steps * psi);
      expect.template operator()<ts::Zero2>(a, psi, steps * psi);
      expect.template operator()<ts::Zero3<>>(a, 2 * steps * psi, steps * psi);
      expect.template operator()<Keep>(a, steps * psi, steps * psi);
    }
  }
}

TEST_CASE("P029: a reshard before backward adds one gather a unit, no reshard adds none") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<Keep> toy(ranks, blocks(3));
    CHECK(gathers(toy.whole_step()) == 3);
    toy.forward_all();
    for (int u = 0; u < 3; ++u) toy.model.reshard(toy.unit(u));
    toy.backward_all();
    CHECK(gathers(toy.step()) == 6);
    CHECK(gathers(toy.whole_step()) == 3);
    toy.check();
  });
}

TEST_CASE("P036, B057, B058: recompute inside the backward lease gathers nothing more") {
  const auto expect = []<class Strategy>(std::uint64_t expected) {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(3));
      for (int s = 0; s < 3; ++s) {
        toy.forward_all();
        for (int u = 2; u >= 0; --u) {
          auto lease = toy.model.backward(toy.unit(u));
          toy.forward(u);  // a forward lease within
          toy.write_gradients(u, lease);
          toy.expect_gradients(u);
        }
        const ts::StepReport report = toy.step();
        // The first step's order is not the expected one: units are gathered ahead in vain.
        CHECK(report.order_changed == (s == 0));
        if (s > 0) CHECK(gathers(report) == expected);
        CHECK(reductions(report) == 3);
      }
      toy.check();
    });
  };
  expect.template operator()<ts::Zero3<>>(6);
  expect.template operator()<Keep>(3);
}

TEST_CASE("P036: a backward lease that needs no weights gathers nothing and still reduces") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(3));
    for (int s = 0; s < 3; ++s) {
      toy.forward_all();
      toy.backward(2);
      toy.backward(1);
      {
        auto lease = toy.model.backward(toy.unit(0), ts::gradients_only);
        const auto gradient = lease.gradient(toy.tensor(0));
        under_test::write(gradient.data, std::vector<float>(gradient.size, 0.5f));
        toy.reference.gradients[0].assign(gradient.size, 0.5);
      }
      const ts::StepReport report = toy.step();
      // The first step's expected order gathers it ahead; what is gathered is then not used.
      CHECK(gathers(report) == (s == 0 ? 6 : 5));
      CHECK(reductions(report) == 3);
    }
    toy.check();
  });
}

TEST_CASE("P001: a unit without tensors is a no-op in forward, backward and step") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, {{"nothing", {}}, {"empty", {0, 0}}});
      for (int s = 0; s < 3; ++s) {
        CHECK(toy.whole_step().collectives == ts::CollectiveCounts{});
      }
      const ts::Plan plan = toy.model.plan();
      CHECK(plan.total_bytes() == line(plan, "step scalars"));
    });
  });
}
