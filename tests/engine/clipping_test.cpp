// The gradient norm, clipping, edits between backward and step, and steps that are skipped.
#include <cmath>
#include <limits>

#include "support.hpp"

using namespace engine_test;

namespace {

const std::vector<UnitSpec> kUnits = {{"a", {1000, 3}}, {"b", {257}}, {"c", {0, 64}}};

// The reference's norm: its sums are exact in double, so only the square root rounds.
double norm_of(const Reference& reference, ts::NormKind kind) {
  double total = 0;
  for (const auto& gradient : reference.gradients) {
    for (double g : gradient) {
      switch (kind) {
        case ts::NormKind::l2: total += g * g; break;
        case ts::NormKind::l1: total += std::fabs(g); break;
        case ts::NormKind::inf: total = std::max(total, std::fabs(g)); break;
      }
    }
  }
  return kind == ts::NormKind::l2 ? std::sqrt(total) : total;
}

float rounded(double value) {
  volatile float result = static_cast<float>(value);
  return result;
}

}  // namespace

TEST_CASE("P085, B077, B078, B075: every norm kind is the reference's on all ranks, exactly") {
  for (ts::NormKind kind : {ts::NormKind::l2, ts::NormKind::l1, ts::NormKind::inf}) {
    for (int world : {1, 2, 3, 8}) {
      for_each_strategy([&]<class Strategy>() {
        under_test::run_ranks(world, [&](under_test::Ranks ranks) {
          // Under a budget some units are sharded and some are kept: all count once.
          Toy<Strategy> toy(ranks, kUnits, {.gathered_bytes = 2048, .norm = kind});
          for (int s = 0; s < 2; ++s) {
            toy.forward_all();
            toy.backward_all();
            const double expected = norm_of(toy.reference, kind);
            const ts::StepReport report = toy.step();
            CHECK(report.norm == expected);
            CHECK(report.clipped_norm == expected);
            CHECK(count_of(report, ts::CollectiveKind::scalars) == (world > 1 ? 1 : 0));
          }
        });
      });
    }
  }
}

TEST_CASE("P085, B079: a bound that binds scales every gradient; both norms are reported") {
  for (ts::NormKind kind : {ts::NormKind::l2, ts::NormKind::l1, ts::NormKind::inf}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(2, [&](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, kUnits, {.clip_norm = 0.5f, .norm = kind});
        toy.forward_all();
        toy.backward_all();
        const double norm = norm_of(toy.reference, kind);
        const float factor = rounded(0.5 / (norm + 1e-6));
        const ts::StepReport report = toy.model.step().get();
        CHECK(report.norm == norm);
        CHECK(report.norm > 0.5);
        CHECK(report.clipped_norm == norm * static_cast<double>(factor));
        CHECK(report.clipped_norm == doctest::Approx(0.5).epsilon(1e-5));
        for (const ts::TensorInfo& info : toy.model.tensors()) {
          std::vector<float> expected;
          for (std::size_t i = 0; i < toy.reference.weights[info.id].size(); ++i) {
            const float clipped = rounded(toy.reference.gradients[info.id][i] * factor);
            expected.push_back(rounded(toy.reference.weights[info.id][i] -
                                       static_cast<double>(rounded(kRate * clipped))));
          }
          CHECK(differences(toy.model.full(ts::State::parameter(), info), expected) == 0);
        }
      });
    });
  }
}

TEST_CASE("P088, B079: no bound by default, 0 turns clipping off, one that is loose does nothing") {
  CHECK(ts::Options{}.clip_norm == 0);
  for (float bound : {0.0f, 1e6f}) {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(ranks, kUnits, {.clip_norm = bound});
      const ts::StepReport report = toy.whole_step();
      CHECK(report.norm > 1);
      CHECK(report.clipped_norm == report.norm);
      toy.check();
    });
  }
}

TEST_CASE("P087, B081: local gradients edited between backward and step; no collective for it") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(3, [](under_test::Ranks ranks) {
      // The reduction is late: the edit must come after it.
      Toy<Strategy> toy(ranks, kUnits, {}, {.reduce_delay = std::chrono::milliseconds(5)});
      const ts::CollectiveCounts before = toy.whole_step().collectives;
      toy.forward_all();
      toy.backward_all();
      for (auto& gradient : toy.reference.gradients) {
        for (double& g : gradient) g = std::clamp(g, -0.0625, 0.0625);
      }
      for (const ts::TensorInfo& info : toy.model.tensors()) {
        for (float& g : toy.model.local(ts::State::gradient(), info).values) {
          g = std::clamp(g, -0.0625f, 0.0625f);
        }
      }
      const double expected = norm_of(toy.reference, ts::NormKind::l2);
      const ts::StepReport report = toy.step();
      CHECK(report.norm == expected);
      CHECK(report.collectives == before);
      toy.check();
    });
  });
}

TEST_CASE("B072: NaN or inf in one rank's shard: all skip together, nothing changes, steps agree") {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (float value : bad) {
    for (float bound : {0.0f, 0.5f}) {
      for_each_strategy([&]<class Strategy>() {
        under_test::run_ranks(4, [&](under_test::Ranks ranks) {
          // 1024 elements over 4 ranks: element 600 is in rank 2's piece.
          Toy<Strategy> toy(ranks, {{"a", {1024}}, {"b", {64}}}, {.clip_norm = bound});
          toy.model.step();
          const std::uint64_t parameters = toy.model.parameters_digest();
          const std::uint64_t moments = toy.model.moments_digest();
          toy.forward_all();
          toy.backward_all();
          if (ranks.rank() == 2) {
            const ts::LocalState mine = toy.model.local(ts::State::gradient(), toy.tensor(0));
            mine.values[600 - mine.begin] = value;
          }
          const ts::StepReport report = toy.step();
          CHECK(report.skipped);
          CHECK(report.step == 1);
          CHECK_FALSE(std::isfinite(report.norm));
          CHECK(toy.model.parameters_digest() == parameters);
          CHECK(toy.model.moments_digest() == moments);
          toy.reference.gradients.assign(3, {});
          if (bound == 0) {
            const ts::StepReport next = toy.whole_step();
            CHECK_FALSE(next.skipped);
            CHECK(next.step == 2);
            toy.check();
          }
        });
      });
    }
  }
}

TEST_CASE("P080, B072: 8 bad steps in bf16 are 8 skipped steps, the clock does not move") {
  using Model = ShardOf<ts::Zero3<>, ts::Bf16, ts::AdamW>;
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<ts::bf16> w(static_cast<ts::bf16*>(nullptr), 100);
    Model model(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 0.5f});
    const ts::Unit unit = model.add_unit("u", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    const auto step = [&](float gradient) {
      {
        auto lease = model.backward(unit);
        std::fill_n(lease.gradient(w).data, 100, ts::to_bf16(gradient));
      }
      return model.step().get();
    };
    const std::uint64_t before = model.parameters_digest();
    for (int s = 0; s < 8; ++s) {
      const bool inf_at_one = s % 2 == 0 && ranks.rank() == 1;
      const float bad = s % 2 == 0 ? (inf_at_one ? std::numeric_limits<float>::infinity() : 1.0f)
                                   : std::numeric_limits<float>::quiet_NaN();
      const ts::StepReport report = step(bad);
      CHECK(report.skipped);
      CHECK(report.step == 0);
    }
    CHECK(model.parameters_digest() == before);
    CHECK(step(1.0f).step == 1);
    // Adam's first update with its clock at 1 moves each weight by the rate.
    for (float weight : model.full(ts::State::master(), w)) {
      CHECK(weight == doctest::Approx(0.5f).epsilon(1e-6));
    }
  });
}

TEST_CASE("P083: the step count is the global one, for units that were idle too") {
  using Model = ShardOf<ts::Zero3<>, ts::Fp32, ts::AdamW>;
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<float> a(static_cast<float*>(nullptr), 70);
    std::span<float> b(static_cast<float*>(nullptr), 70);
    Model model(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 0.5f});
    const ts::Unit unit_a = model.add_unit("a", a);
    const ts::Unit unit_b = model.add_unit("b", b);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
    const auto write = [&](ts::Unit unit, std::span<float>& tensor) {
      auto lease = model.backward(unit);
      std::fill_n(lease.gradient(tensor).data, 70, 1.0f);
    };
    for (int s = 1; s <= 3; ++s) {
      write(unit_a, a);
      if (s == 3) write(unit_b, b);
      CHECK(model.step().get().step == static_cast<std::uint64_t>(s));
    }
    // b's only update: m = 0.1, v = 0.001, corrected as step 3.
    const double m = 0.1 / (1 - std::pow(0.9, 3));
    const double v = 0.001 / (1 - std::pow(0.999, 3));
    for (float weight : model.full(ts::State::parameter(), b)) {
      CHECK(weight == doctest::Approx(-0.5 * m / std::sqrt(v)).epsilon(1e-4));
    }
    for (float weight : model.full(ts::State::parameter(), a)) {
      CHECK(weight == doctest::Approx(-1.5).epsilon(1e-4));
    }
  });
}
