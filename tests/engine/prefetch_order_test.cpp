// The exact order of gathers, reductions and reshards, and what deviating programs do to it.
#include <random>

#include "support.hpp"

using namespace engine_test;

namespace {

// The events of the third step of a run over 2 ranks; every rank and step must agree.
template <class Strategy>
Strings third_step(const std::vector<UnitSpec>& units, ts::Options options,
                   std::initializer_list<std::string_view> names) {
  options.trace = true;
  Strings seen[2];
  under_test::run_ranks(2, [&](under_test::Ranks ranks) {
    Toy<Strategy> toy(ranks, units, options);
    Strings previous;
    for (int s = 0; s < 3; ++s) {
      const std::size_t from = toy.model.trace().size();
      CHECK_FALSE(toy.whole_step().order_changed);
      const Strings now = events(toy.model.trace(), names, from);
      if (s > 0) CHECK(now == previous);
      previous = now;
    }
    seen[ranks.rank()] = previous;
  });
  CHECK(seen[0] == seen[1]);
  return seen[0];
}

}  // namespace

TEST_CASE("P025: backward at depth 1: gather 2, 1, reduce 2, gather 0, reduce 1, 0, root") {
  const Strings all =
      third_step<ts::Zero3<>>(blocks_and_root(3), {}, {"gather", "reduce", "backward"});
  const auto backward = std::find(all.begin(), all.end(), "backward root");
  REQUIRE(backward != all.end());
  Strings sent;
  for (auto it = backward - 1; it != all.end(); ++it) {
    if (it->starts_with("gather") || it->starts_with("reduce")) sent.push_back(*it);
  }
  // The root comes first, since here it is resharded after forward like every unit.
  CHECK(sent == Strings{"gather 2", "gather 1", "reduce 2", "gather 0", "reduce 1", "reduce 0",
                        "reduce root"});
}

TEST_CASE("P042: the order of gathers and reshards at depths 0, 1 and 2, both ways") {
  const auto order = [](int depth) {
    return third_step<ts::Zero3<>>(blocks(4), {.prefetch_depth = depth}, {"gather", "reshard"});
  };
  CHECK(order(0) == Strings{"gather 0", "reshard 0", "gather 1", "reshard 1", "gather 2",
                            "reshard 2", "gather 3", "reshard 3", "gather 3", "reshard 3",
                            "gather 2", "reshard 2", "gather 1", "reshard 1", "gather 0",
                            "reshard 0"});
  CHECK(order(1) == Strings{"gather 0", "gather 1", "reshard 0", "gather 2", "reshard 1",
                            "gather 3", "reshard 2", "reshard 3", "gather 3", "gather 2",
                            "reshard 3", "gather 1", "reshard 2", "gather 0", "reshard 1",
                            "reshard 0"});
  // Block 3's gather is issued after block 0 reshards.
  CHECK(order(2) == Strings{"gather 0", "gather 1", "gather 2", "reshard 0", "gather 3",
                            "reshard 1", "reshard 2", "gather 2", "reshard 3", "gather 3",
                            "gather 1", "reshard 3", "gather 0", "reshard 2", "reshard 1",
                            "reshard 0"});
}

TEST_CASE("P042: a budget of bytes bounds what is gathered ahead") {
  // Room for one unit ahead (1 KiB), however deep the depth.
  const ts::Options options{.prefetch_depth = 3, .prefetch_bytes = 1024};
  CHECK(third_step<ts::Zero3<>>(blocks(4), options, {"gather", "reshard"}) ==
        third_step<ts::Zero3<>>(blocks(4), {.prefetch_depth = 1}, {"gather", "reshard"}));
  const ts::Options none{.prefetch_depth = 3, .prefetch_bytes = 1023};
  CHECK(third_step<ts::Zero3<>>(blocks(4), none, {"gather", "reshard"}) ==
        third_step<ts::Zero3<>>(blocks(4), {.prefetch_depth = 0}, {"gather", "reshard"}));
}

TEST_CASE("P152: a step's trace names, per unit and in order, what happened to it") {
  const std::initializer_list<std::string_view> names = {"gather", "forward", "reshard", "backward",
                                                         "reduce"};
  const Strings all = third_step<ts::Zero3<>>(blocks(3), {}, names);
  for (const char* unit : {" 0", " 1", " 2"}) {
    Strings mine;
    for (const std::string& event : all) {
      if (event.ends_with(unit)) mine.push_back(event.substr(0, event.size() - 2));
    }
    CHECK(mine ==
          Strings{"gather", "forward", "reshard", "gather", "backward", "reduce", "reshard"});
  }
}

TEST_CASE("P045: small units share a collective, issued where the first of them is needed") {
  // A unit's full buffer is 1 KiB.
  CHECK(third_step<ts::Zero3<>>(blocks(4), {.bucket_bytes = 2048}, {"gather", "reduce"}) ==
        Strings{"gather 0", "gather 2", "gather 3", "gather 1", "reduce 3", "reduce 1"});
  CHECK(third_step<ts::Zero2>(blocks(4), {.bucket_bytes = 4096}, {"gather", "reduce"}) ==
        Strings{"gather 0", "reduce 3"});
  // A bucket smaller than a unit splits it: two collectives a gather and a reduction.
  CHECK(third_step<ts::Zero3<>>(blocks(2), {.prefetch_depth = 0, .bucket_bytes = 512},
                                {"gather", "reduce"}) ==
        Strings{"gather 0", "gather 0", "gather 1", "gather 1", "gather 1", "gather 1", "reduce 1",
                "reduce 1", "gather 0", "gather 0", "reduce 0", "reduce 0"});
}

TEST_CASE("P045, B034, P039: buckets change counts, never results") {
  const std::vector<UnitSpec> units = {{"a", {100}}, {"b", {3000}}, {"c", {64, 65}},
                                       {"d", {0}},   {"e", {1}},    {"f", {700}}};
  for (std::uint64_t bucket : {1, 700, 4096, 1 << 20}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(4, [&](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, units, {.bucket_bytes = bucket, .gathered_bytes = 8192});
        for (int s = 0; s < 3; ++s) {
          const ts::StepReport report = toy.whole_step();
          CHECK(report.collectives == toy.model.plan().collectives);
        }
        toy.check();
      });
    });
  }
}

TEST_CASE("B061: a unit's reduction is issued when its lease ends, not at the end of backward") {
  CHECK(third_step<ts::Zero2>(blocks(3), {}, {"backward", "reduce"}) ==
        Strings{"backward 2", "reduce 2", "backward 1", "reduce 1", "backward 0", "reduce 0"});
}

TEST_CASE("B065, P043: a unit used in odd steps only; what was gathered for it is dropped") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(4), {.prefetch_depth = 2, .gathered_bytes = 1024},
                        {.poison = true});
      for (int s = 0; s < 6; ++s) {
        for (int u : {0, 1, 2, 3}) {
          if (u != 2 || s % 2 == 1) toy.forward(u);
        }
        for (int u : {3, 2, 1, 0}) {
          if (u != 2 || s % 2 == 1) toy.backward(u);
        }
        // Each step's order differs from the one before; the first differs from the expected one.
        CHECK(toy.step().order_changed);
        if (s == 2) break;  // the numbers' bits end here
      }
      CHECK(toy.tensor(2).data() == nullptr);
      toy.check();
    });
  });
}

TEST_CASE(
    "P043: a step that was never recorded costs correctness nothing, a repeated one settles") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(4));
    const auto step = [&](std::initializer_list<int> forward, std::initializer_list<int> backward) {
      for (int u : forward) toy.forward(u);
      for (int u : backward) toy.backward(u);
      return toy.step();
    };
    CHECK(step({3, 1, 0, 2}, {1, 0, 3, 2}).order_changed);
    const ts::StepReport second = step({3, 1, 0, 2}, {1, 0, 3, 2});
    CHECK_FALSE(second.order_changed);
    CHECK(gathers(second) == 8);  // what is gathered ahead is what is used
    CHECK(step({0, 1, 2, 3}, {3, 2, 1, 0}).order_changed);
    toy.check();
  });
}

TEST_CASE("P032: after a full step, a step of unit 0 alone") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(3));
      toy.whole_step();
      toy.forward(0);
      toy.backward(0);
      const ts::StepReport report = toy.step();
      CHECK(reductions(report) == 1);
      toy.whole_step();
      toy.check();
    });
  });
}

TEST_CASE("P037: training and forward-only passes in turn, prefetching nothing, half, all") {
  for (std::uint64_t ahead : {0, 2048, 1 << 20}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(2, [&](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, blocks(4), {.prefetch_depth = 4, .prefetch_bytes = ahead});
        for (int s = 0; s < 3; ++s) {
          toy.whole_step();
          const auto evaluation = toy.model.evaluate();
          toy.forward_all();
          toy.forward_all();
        }
        for (int u = 0; u < 4; ++u) CHECK(toy.tensor(u).data() == nullptr);
        toy.check();
      });
    });
  }
}

TEST_CASE("B065: any order of single leases fits into the plan and is right") {
  const std::vector<UnitSpec> units = {
      {"a", {64}}, {"b", {2000}}, {"c", {300}}, {"d", {5000}}, {"e", {700, 20}}};
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const auto run = [&]<class Strategy>() {
      under_test::run_ranks(2, [&](under_test::Ranks ranks) {
        std::mt19937 random(seed);  // the same on every rank
        ts::Options options;
        options.prefetch_depth = static_cast<int>(random() % 4);
        options.reductions_in_flight = static_cast<int>(random() % 3);
        if (random() % 2 == 0) options.bucket_bytes = 1 + random() % 30000;
        options.gathered_bytes = random() % 30000;
        Toy<Strategy> toy(ranks, units, options, {.poison = true});
        for (int s = 0; s < 3; ++s) {
          for (unsigned n = random() % 6 + 1; n > 0; --n)
            toy.forward(static_cast<int>(random() % 5));
          for (unsigned n = random() % 4 + 1; n > 0; --n)
            toy.backward(static_cast<int>(random() % 5));
          toy.step();
        }
        toy.check();
      });
    };
    CHECK_NOTHROW(run.template operator()<ts::Zero3<>>());
    CHECK_NOTHROW(run.template operator()<ts::ByBudget>());
    CHECK_NOTHROW(run.template operator()<ts::Zero2>());
  }
}
