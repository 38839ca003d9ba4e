// Odd shapes over odd numbers of ranks, against closed forms and against an unsharded perceptron.
#include "mlp.hpp"
#include "support.hpp"

using namespace engine_test;

namespace {

// Three steps on `world` ranks, every lease compared; with two micro-steps in the second.
void train(const std::vector<UnitSpec>& units, int world, ts::Options options = {}) {
  CAPTURE(world);
  options.gathered_bytes = 1 << 14;
  for_each_strategy([&]<class Strategy>() {
    under_test::run_ranks(world, [&](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, units, options, {.poison = true});
      toy.whole_step();
      toy.whole_step(2);
      toy.check();
    });
  });
}

// A perceptron, a unit a layer, trained by AdamW on rank r's rows; compared with all rows
// unsharded.
template <class Strategy>
void parity(const std::vector<std::size_t>& sizes, int world, int steps, bool one_unit,
            float clip = 0) {
  constexpr std::size_t kRows = 3;
  under_test::run_ranks(world, [&](under_test::Ranks ranks) {
    Mlp<float> net{sizes};
    MlpReference reference{{sizes}, 1e-2, clip};
    reference.start();
    std::vector<std::span<float>> p;
    for (std::size_t i = 0; i < net.parameters(); ++i) {
      p.emplace_back(static_cast<float*>(nullptr), net.size(i));
    }
    ShardOf<Strategy, ts::Fp32, ts::AdamW> model(ts::Mesh<under_test::Backend>(ranks),
                                                 {.learning_rate = 1e-2f},
                                                 {.gathered_bytes = 3000, .clip_norm = clip});
    std::vector<ts::Unit> units;
    if (one_unit) {
      REQUIRE(net.layers() == 2);
      units.assign(2, model.add_unit("all", p[0], p[1], p[2], p[3]));
    } else {
      for (std::size_t l = 0; l < net.layers(); ++l) {
        units.push_back(model.add_unit(std::to_string(l), p[2 * l], p[2 * l + 1]));
      }
    }
    model.materialize([&](const ts::TensorInfo& info, std::uint64_t index) {
      return static_cast<float>(net.initial(info.id, index));
    });
    const auto first = kRows * static_cast<std::size_t>(ranks.rank());
    for (int s = 0; s < steps; ++s) {
      net.start(first, kRows);
      for (std::size_t l = 0; l < net.layers(); ++l) {
        const auto lease = model.forward(units[l]);
        net.forward(l, p[2 * l], p[2 * l + 1]);
      }
      const double mine = net.loss();
      for (std::size_t l = net.layers(); l-- > 0;) {
        auto lease = model.backward(units[l]);
        ts::Gradient<float> g[] = {lease.gradient(p[2 * l]), lease.gradient(p[2 * l + 1])};
        for (const auto& each : g) {
          if (!each.accumulate) std::fill_n(each.data, each.size, 0.0f);
        }
        net.backward(l, p[2 * l],
                     [&](bool bias, std::size_t i, float value) { g[bias].data[i] += value; });
      }
      const ts::StepReport report = model.step().get();
      const double loss = reference.step(kRows * static_cast<std::size_t>(world));
      if (world == 1) CHECK(mine == doctest::Approx(loss).epsilon(1e-5));
      CHECK(report.norm == doctest::Approx(reference.norm).epsilon(1e-5));
    }
    for (const ts::TensorInfo& info : model.tensors()) {
      const std::vector<float> now = model.full(ts::State::parameter(), info);
      double worst = 0;
      for (std::size_t i = 0; i < now.size(); ++i) {
        worst = std::max(worst, std::fabs(static_cast<double>(now[i]) - reference.w[info.id][i]));
      }
      CHECK(worst < 2e-5);
    }
  });
}

}  // namespace

TEST_CASE("P011, B009: ten steps of biased linear pairs of odd sizes, W = 1..8, as unsharded") {
  for (const auto& sizes :
       std::vector<std::vector<std::size_t>>{{16, 15, 8}, {7, 15, 3}, {16, 17, 8}}) {
    for (int world = 1; world <= 8; ++world) {
      CAPTURE(world);
      parity<ts::Zero3<>>(sizes, world, 10, true);
    }
    parity<Keep>(sizes, 5, 10, false);
    parity<ts::Zero2>(sizes, 3, 10, true);
    parity<ts::Zero1>(sizes, 7, 10, false);
    parity<ts::Replicate>(sizes, 3, 10, true);
    parity<ts::ByBudget>(sizes, 4, 10, false);
  }
}

TEST_CASE("P016, P017: rows and columns of 17 over 8, 15 expert rows over 4, clipped each step") {
  parity<ts::Zero3<>>({16, 17, 8}, 8, 4, true, 1.0f);
  parity<Keep>({17, 8, 17, 5}, 8, 5, false, 0.25f);
  train({{"experts", {3 * 5 * 8, 3 * 8 * 5}}}, 4);
}

TEST_CASE("P015, P039: one unit or many, the same ten steps") {
  for (bool one : {true, false}) parity<ts::Zero3<>>({32, 16, 8}, 8, 5, one);
}

TEST_CASE("B003: a trailing tensor without elements that takes part in backward") {
  for (int world : {1, 2, 3}) train({{"u", {16, 0}}, {"v", {0}}, {"w", {0, 5, 0}}}, world);
}

TEST_CASE("B004, B005, P003, P021: fewer elements than ranks; ranks that hold nothing") {
  train({{"three", {3}}}, 8);
  train({{"18 rows", {18 * 7}}, {"18 rows of 64", {18 * 64}}}, 8);
  train({{"one and one", {1, 1}}}, 3, {.bucket_bytes = 400});
  for (std::int64_t dim : {8, 3, 1}) train({{"pair", {dim * dim, dim * dim}}}, 4);
}

TEST_CASE("B008, B011: 32001 rows over 8 ranks, 10 elements over 3") {
  train({{"head", {32001 * 3}}}, 8);
  train({{"ten", {10}}}, 3);
}

TEST_CASE("P014, P020: pieces in rank order give back each tensor once, short pieces included") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, {{"a", {27, 9, 27, 3}}, {"b", {6, 3}}, {"c", {1}}});
    std::uint64_t held = 0;
    for (const ts::TensorInfo& info : toy.model.tensors()) {
      const ts::LocalState mine = toy.model.local(ts::State::parameter(), info);
      for (std::size_t i = 0; i < mine.values.size(); ++i) {
        CHECK(mine.values[i] == first_value(info.id, mine.begin + i));
      }
      held += mine.values.size();
    }
    // Small units lie whole on rank 0, or on both where they have two granules or more.
    CHECK(held == (ranks.rank() == 0 ? 27 + 9 + 6 + 1 : 27 + 3 + 3));
    toy.whole_step();
    toy.check();
  });
}

TEST_CASE("P022: three 3 x 5 weights, rank r's part of weight i is (i + 1)(r + 1): closed forms") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    for (bool accumulate : {false, true}) {
      // In layers of 64 rows, so that both ranks hold a part.
      Toy<ts::Zero3<>> toy(ranks, {{"0", {128}}, {"1", {128}}, {"2", {128}}},
                           {.prefetch_depth = accumulate ? 3 : 0});
      for (int u = 0; u < 3; ++u) {
        for (float& value : toy.model.local(ts::State::parameter(), toy.tensor(u)).values) {
          value = static_cast<float>((u + 1) * (ranks.rank() + 1));
        }
        auto& expected = toy.reference.weights[static_cast<std::size_t>(u)];
        for (std::size_t i = 0; i < 128; ++i) {
          expected[i] = static_cast<double>((u + 1) * (i < 64 ? 1 : 2));
        }
      }
      for (int s = 0; s < 3; ++s) {
        for (int micro = 0; micro < (accumulate ? 2 : 1); ++micro) {
          toy.forward_all();
          toy.backward_all();
        }
        for (int u = 0; u < 3; ++u) {
          CHECK(differences(toy.model.full(ts::State::gradient(), toy.tensor(u)),
                            toy.reference.gradients[static_cast<std::size_t>(u)]) == 0);
        }
        toy.step();
      }
      toy.check();
    }
  });
}

TEST_CASE("P023: 100 units of 100 elements, and one of 8100, three steps with prefetch") {
  std::vector<UnitSpec> many = blocks(100, 100);
  for (int depth : {1, 5}) {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(ranks, many, {.prefetch_depth = depth}, {.poison = true});
      for (int s = 0; s < 3; ++s) toy.whole_step();
      toy.check();
    });
  }
  train({{"large", {8100}}}, 2);
}
