// The plan: known before memory is touched, exact, and for other world sizes too.
#include <limits>
#include <thread>

#include "support.hpp"

using namespace engine_test;

namespace {

const std::vector<UnitSpec> kPlanUnits = {
    {"a", {1000, 3}}, {"b", {64 * 5}}, {"frozen", {700}, {0}}, {"c", {0}}, {"d", {129, 64}}};

// A Shard's plan without materialize.
template <class Strategy, class Precision = ts::Fp32, class Optimizer = ts::Sgd>
struct Planned {
  explicit Planned(under_test::Ranks ranks, ts::Options options = {})
      : model(ts::Mesh<under_test::Backend>(ranks), Optimizer{}, std::move(options)) {
    (void)model.add_unit("a", a, ts::no_decay(b));
    (void)model.add_unit("c", ts::frozen(c), d);
  }
  std::span<float> a{static_cast<float*>(nullptr), 1000};
  std::span<float> b{static_cast<float*>(nullptr), 3};
  std::span<float> c{static_cast<float*>(nullptr), 700};
  std::vector<float> d = std::vector<float>(129);
  ShardOf<Strategy, Precision, Optimizer> model;
};

}  // namespace

TEST_CASE("the plan is what a step uses and sends: peak, collectives, bytes") {
  for (int world : {1, 2, 5}) {
    for (int depth : {0, 1, 2}) {
      for_each_strategy([&]<class Strategy>() {
        under_test::run_ranks(world, [&](under_test::Ranks ranks) {
          Toy<Strategy> toy(ranks, kPlanUnits, {.prefetch_depth = depth, .gathered_bytes = 3000});
          const ts::Plan plan = toy.model.plan();
          ts::StepReport report;
          for (int s = 0; s < 3; ++s) report = toy.whole_step();
          CHECK(report.peak_bytes == plan.most_used_bytes);
          CHECK(plan.most_used_bytes <= plan.total_bytes());
          CHECK(report.collectives == plan.collectives);
          CHECK(plan == toy.model.plan());  // a value: the same before and after
        });
      });
    }
  }
}

TEST_CASE("plan(n) of another world size is the plan of a run at that size") {
  const auto plans = []<class Strategy>(ts::Options options) {
    std::vector<ts::Plan> real;
    for (int world : {1, 2, 3, 8}) {
      under_test::run_ranks(world, [&](under_test::Ranks ranks) {
        Planned<Strategy> planned(ranks, options);
        const ts::Plan before = planned.model.plan();
        planned.model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
        CHECK(planned.model.plan() == before);
        if (ranks.rank() == world - 1) real.push_back(before);
        for (int other : {1, 2, 3, 8, 1000}) CHECK(planned.model.plan(other).mesh.shard == other);
      });
    }
    Planned<Strategy> single(under_test::Ranks(), options);
    CHECK(single.model.plan(1) == real[0]);
    CHECK(single.model.plan(2) == real[1]);
    CHECK(single.model.plan(3) == real[2]);
    CHECK(single.model.plan(8) == real[3]);
    CHECK_SAYS(error_of([&] { (void)single.model.plan(0); }), "1 to 16777216 ranks");
    CHECK_THROWS_AS((void)single.model.plan(-3), ts::Error);
  };
  plans.operator()<ts::Replicate>({});
  plans.operator()<ts::Zero1>({.bucket_bytes = 1000});
  plans.operator()<ts::Zero2>({.reductions_in_flight = 3});
  plans.operator()<ts::Zero3<>>({.prefetch_depth = 2, .bucket_bytes = 1 << 20});
  plans.operator()<Keep>({.accumulation = ts::Accumulation::reduce_once});
  plans.operator()<ts::ByBudget>({.gathered_bytes = 5000});
}

TEST_CASE("P003: building and planning touch no tensor memory, at W = 4 with dims 8, 3 and 1") {
  // Pointers that may not be followed.
  auto* const nowhere = reinterpret_cast<float*>(std::uintptr_t{64});
  for (std::int64_t dim : {8, 3, 1}) {
    under_test::run_ranks(4, [&](under_test::Ranks ranks) {
      float* first = nowhere;
      float* second = nowhere;
      ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(ranks)};
      const ts::Unit unit =
          model.add_unit("pair", ts::tensor(first, {dim, dim}), ts::tensor(second, {dim, dim}));
      CHECK(model.plan().total_bytes() > 0);
      CHECK(first == nowhere);
      model.materialize([](const ts::TensorInfo& info, std::uint64_t index) {
        return first_value(info.id, index);
      });
      CHECK(first == nullptr);
      {
        const auto lease = model.forward(unit);
        CHECK(second[dim * dim - 1] == first_value(1, static_cast<std::uint64_t>(dim * dim - 1)));
      }
    });
  }
}

TEST_CASE("state bytes under Zero3 are the replicated state / N plus padding, by type") {
  const auto state = []<class Strategy, class Precision>(int world) {
    Planned<Strategy, Precision, ts::AdamW> planned{under_test::Ranks()};
    return planned.model.plan(world).state_bytes();
  };
  // fp32: weights of both groups, two moments and a sum of the trainable one.
  const std::uint64_t trainable = 1024 + 64 + 192, frozen = 704;
  CHECK(state.operator()<ts::Replicate, ts::Fp32>(1) == 16 * trainable + 4 * frozen);
  for (int world : {2, 4, 16}) {
    const std::uint64_t n = static_cast<std::uint64_t>(world);
    const std::uint64_t a = ts::layout::round_up((1088 + n - 1) / n, 64);
    const std::uint64_t d = ts::layout::round_up((192 + n - 1) / n, 64);
    const std::uint64_t c = ts::layout::round_up((704 + n - 1) / n, 64);
    CHECK(state.operator()<ts::Zero3<>, ts::Fp32>(world) == 16 * (a + d) + 4 * c);
    CHECK(state.operator()<ts::Zero2, ts::Fp32>(world) == 12 * (a + d) + 4 * n * (a + c + d));
    CHECK(state.operator()<ts::Replicate, ts::Fp32>(world) == 16 * n * (a + d) + 4 * n * c);
  }
}

TEST_CASE("B010, B036: the plan names the policy in force; nothing is downgraded in silence") {
  Planned<ts::Zero3<>> zero3{under_test::Ranks()};
  CHECK(zero3.model.plan().policy == "zero3, fp32, on-device");
  CHECK(zero3.model.plan(7).policy == "zero3, fp32, on-device");
  Planned<Keep, ts::Bf16> keep{under_test::Ranks()};
  CHECK(keep.model.plan().policy == "zero3-keep, bf16, on-device");
}

TEST_CASE("the plan prints every line, the totals and the collectives") {
  Planned<ts::Zero3<>> planned{under_test::Ranks()};
  const ts::Plan plan = planned.model.plan(4);
  const std::string text = plan.to_string();
  CHECK_SAYS(text, "plan: zero3, fp32, on-device, 4 ranks");
  for (const ts::PlanLine& line : plan.memory) {
    CHECK_SAYS(text, line.what);
    CHECK_SAYS(text, std::to_string(line.bytes));
  }
  CHECK_SAYS(text, std::to_string(plan.total_bytes()));
  CHECK_SAYS(text, std::to_string(plan.state_bytes()));
  CHECK_SAYS(text, "all_gather x 4");
  CHECK_SAYS(text, "reduce_scatter x 2");
  CHECK_SAYS(text, "scalars x 1");
  CHECK_FALSE(contains(text, "broadcast"));
}

TEST_CASE("P145: what tensors that cannot be rebound cost is in the plan") {
  Planned<ts::Zero3<>> planned{under_test::Ranks()};
  const ts::Plan plan = planned.model.plan(2);
  CHECK(plan.units[0].copied == 0);
  CHECK(plan.units[1].copied == 129 * 4);
}

TEST_CASE("B127: a unit larger than the bucket is split, the plan counts the pieces") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero2> toy(ranks, {{"two vocabularies", {40000, 40000}}}, {.bucket_bytes = 65536});
    const ts::StepReport report = toy.whole_step();
    CHECK(gathers(report) == 5);  // 320,000 bytes
    CHECK(report.collectives == toy.model.plan().collectives);
    toy.check();
  });
}

TEST_CASE("P105: what a byte budget keeps: the largest first, never over, in any order") {
  // Full buffers of 40, 100, 30 and 100 granules.
  const auto kept = [](std::vector<std::pair<std::string, std::int64_t>> sizes,
                       std::uint64_t granules) {
    std::vector<UnitSpec> units;
    for (const auto& [name, size] : sizes) units.push_back({name, {size * 64}});
    std::string names;
    std::uint64_t bytes = 0;
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      ts::Options options{.prefetch_depth = 0, .gathered_bytes = granules * 256, .trace = true};
      Toy<ts::ByBudget> toy(ranks, units, options);
      toy.whole_step();
      if (ranks.rank() != 0) return;
      bytes = toy.model.plan().memory[1].bytes;
      for (const auto& [name, size] : sizes) {
        const auto all = events(toy.model.trace(), {"gather"});
        if (std::count(all.begin(), all.end(), "gather " + name) == 1) names += name;
      }
    });
    CHECK(bytes <= granules * 256 / 2);  // this rank's own piece is state
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::vector<std::pair<std::string, std::int64_t>> sizes = {
      {"a", 40}, {"b", 100}, {"c", 30}, {"d", 100}};
  CHECK(kept(sizes, 0) == "");
  CHECK(kept(sizes, 29) == "");
  CHECK(kept(sizes, 100) == "b");
  CHECK(kept(sizes, 200) == "bd");
  CHECK(kept(sizes, 240) == "abd");
  CHECK(kept(sizes, 269) == "abd");
  CHECK(kept(sizes, 270) == "abcd");
  std::vector<std::pair<std::string, std::int64_t>> reversed(sizes.rbegin(), sizes.rend());
  CHECK(kept(reversed, 240).size() == 3);
  CHECK(kept(reversed, 270) == "abcd");
}

TEST_CASE("B118: sizes in the plan are 64 bits wide: 2^40 elements") {
  std::span<float> huge(static_cast<float*>(nullptr), std::size_t{1} << 40);
  ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(under_test::Ranks())};
  (void)model.add_unit("huge", huge);
  const ts::Plan plan = model.plan(8);
  CHECK(plan.units[0].parameters == std::uint64_t{1} << 42);
  CHECK(plan.units[0].piece == std::uint64_t{1} << 39);
  CHECK(plan.collectives[ts::CollectiveKind::all_gather].bytes == 2 * 7 * (std::uint64_t{1} << 39));
}

TEST_CASE("sizes whose sums would not fit in 64 bits are refused by plan and by materialize") {
  for (int tensors : {1, 2, 4, 9, 16}) {
    CAPTURE(tensors);
    under_test::run_ranks(1, [&](under_test::Ranks ranks) {
      std::vector<float*> w(static_cast<std::size_t>(tensors));
      ShardOf<ts::Replicate> model{ts::Mesh<under_test::Backend>(ranks)};
      for (float*& each : w) {  // 2^62 bytes each
        (void)model.add_unit(std::to_string(&each - w.data()),
                             ts::tensor(each, {1 << 20, 1 << 20, 1 << 20}));
      }
      for (const std::string& message :
           {error_of([&] { (void)model.plan(); }), error_of([&] { (void)model.plan(1 << 20); }),
            error_of([&] { model.materialize(ts::from_tensors); })}) {
        CHECK_SAYS(message, "too many elements");
        CHECK_SAYS(message, "'0.0' of shape [1048576, 1048576, 1048576]");
      }
    });
  }
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t spare : {most, most - 100, most - 20000, std::uint64_t{1} << 62}) {
    under_test::run_ranks(1, [&](under_test::Ranks ranks) {
      std::span<float> w(static_cast<float*>(nullptr), 64);
      ShardOf<ts::Zero3<>> model(ts::Mesh<under_test::Backend>(ranks), {},
                                 {.spare_slot_bytes = spare});
      (void)model.add_unit("u", w);
      CHECK_SAYS(error_of([&] { (void)model.plan(); }), "spare_slot_bytes");
    });
  }
}

TEST_CASE("a plan is for 1 to 2^24 ranks") {
  under_test::run_ranks(1, [](under_test::Ranks ranks) {
    std::span<float> w(static_cast<float*>(nullptr), 64);
    ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(ranks)};
    (void)model.add_unit("u", w);
    CHECK(model.plan(1 << 14).mesh.shard == 1 << 14);
    for (int world : {0, -1, (1 << 24) + 1, std::numeric_limits<int>::max()}) {
      CHECK_SAYS(error_of([&] { (void)model.plan(world); }), "1 to 16777216 ranks");
    }
  });
}
