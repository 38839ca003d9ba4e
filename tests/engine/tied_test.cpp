// One tensor in several units, or several times in one.
#include "support.hpp"

using namespace engine_test;

namespace {

// An embedding tied to the head, with a block between; `in_head`: what else the head holds.
template <class Strategy>
struct TiedModel {
  TiedModel(under_test::Ranks ranks, bool bias, ts::Options options = {})
      : has_bias(bias),
        model(ts::Mesh<under_test::Backend>(ranks, {.poison = true}), {.learning_rate = 0.25f},
              std::move(options)) {
    embedding = model.add_unit("embedding", table);
    block = model.add_unit("block", weight);
    head = has_bias ? model.add_unit("head", table, head_bias) : model.add_unit("head", table);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
  }

  void forward() {
    {
      const auto lease = model.forward(embedding);
      check();
    }
    { const auto lease = model.forward(block); }
    {
      const auto lease = model.forward(head);
      check();
    }
  }
  // Rank r adds (r + 1) * scale at the head and twice that at the embedding.
  void backward(float scale) {
    const float mine = static_cast<float>(model.rank() + 1) * scale;
    const auto add = [](auto gradient, float part) {
      for (float& g : gradient.span()) g = gradient.accumulate ? g + part : part;
    };
    {
      auto lease = model.backward(head);
      check();
      add(lease.gradient(table), mine);
      if (has_bias) add(lease.gradient(head_bias), mine);
    }
    {
      auto lease = model.backward(block);
      add(lease.gradient(weight), mine);
    }
    {
      auto lease = model.backward(embedding);
      add(lease.gradient(table), 2 * mine);
    }
  }
  void check() { CHECK(differences(table, std::vector<float>(table.size(), value)) == 0); }
  ts::StepReport step(float scale, int micro_steps) {
    const ts::StepReport report = model.step().get();
    const float ranks = static_cast<float>(model.world_size());
    value -= 0.25f * 3 * scale * static_cast<float>(micro_steps) * (ranks + 1) / 2;
    return report;
  }

  bool has_bias;
  float value = 1;
  std::span<float> table{static_cast<float*>(nullptr), 37 * 5};
  std::span<float> weight{static_cast<float*>(nullptr), 64};
  std::span<float> head_bias{static_cast<float*>(nullptr), 37};
  ts::Unit embedding, block, head;
  ShardOf<Strategy> model;
};

}  // namespace

TEST_CASE("P092, B013, B014, B021: a tied head: one parameter, both contributions, 20 steps") {
  for (bool bias : {false, true}) {
    for (int world : {1, 2, 4}) {
      for_each_strategy([&]<class Strategy>() {
        under_test::run_ranks(world, [&](under_test::Ranks ranks) {
          TiedModel<Strategy> tied(ranks, bias, {.gathered_bytes = 1000});
          CHECK(tied.model.tensors().size() == (bias ? 3 : 2));
          for (int s = 0; s < 20; ++s) {
            tied.forward();
            tied.backward(1.0f / 128);
            const ts::StepReport report = tied.step(1.0f / 128, 1);
            CHECK(report.step == static_cast<std::uint64_t>(s + 1));
            if (world > 1) CHECK(report.collectives == tied.model.plan().collectives);
          }
          CHECK(tied.model.full(ts::State::parameter(), tied.table) ==
                std::vector<float>(tied.table.size(), tied.value));
        });
      });
    }
  }
}

TEST_CASE("B012, B021: tied weights through small buckets, and both ways of accumulating") {
  for (std::uint64_t bucket : {0, 300, 1200, 1 << 20}) {
    for (bool once : {false, true}) {
      for_each_strategy([&]<class Strategy>() {
        under_test::run_ranks(2, [&](under_test::Ranks ranks) {
          ts::Options options{.bucket_bytes = bucket};
          if (once) options.accumulation = ts::Accumulation::reduce_once;
          TiedModel<Strategy> tied(ranks, true, options);
          for (int s = 0; s < 3; ++s) {
            for (int micro = 0; micro < 3; ++micro) {
              tied.forward();
              if (once && micro < 2) {
                const auto scope = tied.model.accumulate();
                tied.backward(0.125f);
              } else {
                tied.backward(0.125f);
              }
            }
            tied.step(0.125f, 3);
          }
          CHECK(tied.model.full(ts::State::parameter(), tied.table) ==
                std::vector<float>(tied.table.size(), tied.value));
        });
      });
    }
  }
}

TEST_CASE("B014: a tied tensor counts once in the norm and in the plan") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    TiedModel<ts::Zero3<>> tied(ranks, false);
    tied.forward();
    tied.backward(1);
    // Means over ranks 1 and 2: 1.5 at the head, 3 at the embedding, together 4.5 in 185 elements.
    const double expected = 185 * 4.5 * 4.5 + 64 * 1.5 * 1.5;
    const double norm = tied.model.step().get().norm;
    CHECK(norm * norm == doctest::Approx(expected).epsilon(1e-12));
    const ts::Plan plan = tied.model.plan();
    CHECK(plan.units[2].parameters == 0);
    CHECK(plan.units[2].gradients == 0);
  });
}

TEST_CASE("P006: a tensor listed twice in one unit is one parameter") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      std::span<float> w(static_cast<float*>(nullptr), 100);
      float* pointer = nullptr;
      std::span<float> v(static_cast<float*>(nullptr), 100);
      float* other = nullptr;
      ShardOf<Strategy> model(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 1});
      ShardOf<Strategy> once(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 1});
      const ts::Unit unit =
          model.add_unit("u", w, ts::tensor(pointer, {10}), w, ts::tensor(pointer, {10}));
      (void)once.add_unit("u", v, ts::tensor(other, {10}));
      CHECK(model.tensors().size() == 2);
      CHECK(model.plan() == once.plan());
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      {
        auto lease = model.backward(unit);
        std::fill_n(lease.gradient(w).data, 100, 0.5f);
        CHECK(lease.gradient(w).accumulate);  // the second mention is the same buffer
        std::fill_n(lease.gradient(pointer).data, 10, 0.0f);
      }
      CHECK(model.step().get().norm == 5);  // sqrt(100 / 4)
      CHECK(model.full(ts::State::parameter(), w) == std::vector<float>(100, 0.5f));
    });
  });
}

TEST_CASE("accumulate() of a unit that only shares tensors is about what it shares") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<float> w(static_cast<float*>(nullptr), 64);
    ShardOf<ts::Zero3<>> model{
        ts::Mesh<under_test::Backend>(ranks), {}, {.accumulation = ts::Accumulation::reduce_once}};
    const ts::Unit table = model.add_unit("table", w);
    const ts::Unit head = model.add_unit("head", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      const auto scope = model.accumulate();
      {
        auto lease = model.backward(head);
        CHECK(lease.accumulate() == (micro_step == 1));
        CHECK(lease.gradient(w).accumulate == lease.accumulate());
      }
      auto lease = model.backward(table);
      CHECK(lease.accumulate());
    }
  });
}

TEST_CASE("a tied tensor of which something else is said: both units and what differs are named") {
  float* w = nullptr;
  std::span<float> span(static_cast<float*>(nullptr), 64);
  ShardOf<ts::Zero3<>> model(ts::Mesh<under_test::Backend>::single(), {}, {.groups = {{}, {}}});
  (void)model.add_unit("first", ts::tensor(w, {4, 4}));
  (void)model.add_unit("plain", span);
  const auto refuse = [&](const char* what, auto&& argument) {
    const std::string message = error_of([&] { (void)model.add_unit("second", argument); });
    CHECK_SAYS(message, "unit 'second'");
    CHECK_SAYS(message, what);
    CHECK(model.plan().units.size() == 2);
  };
  refuse("as shape [8, 8], but there it is [4, 4]", ts::tensor(w, {8, 8}));
  refuse("of unit 'first'", ts::tensor(w, {16}));
  refuse("as frozen, but there it is trainable", ts::frozen(span));
  refuse("as no_decay, but there it is decayed", ts::no_decay(span));
  refuse("as of parameter group 1, but there it is of group 0", ts::in_group(span, 1));
}

TEST_CASE("a tied tensor of which the same is said, or nothing") {
  std::span<float> a(static_cast<float*>(nullptr), 64), b = a, c = a;
  ShardOf<ts::Zero3<>> model(ts::Mesh<under_test::Backend>::single(), {}, {.groups = {{}, {}}});
  (void)model.add_unit("first", ts::frozen(a), ts::no_decay(b), ts::in_group(c, 1));
  (void)model.add_unit("same", ts::frozen(a), ts::no_decay(b), ts::in_group(c, 1));
  (void)model.add_unit("nothing", a, b, c);
  (void)model.add_unit("other names", ts::named("a", a), ts::named("b", b));
  CHECK(model.tensors().size() == 3);
}
