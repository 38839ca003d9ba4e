// The same engine in virtual time: clocks advance by the rules, no memory is touched.
#include <doctest/doctest.h>

#include <vector>

#include "tessera/tessera.hpp"

namespace ts = tessera;

namespace {

using Model = ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, ts::Sim>;

// Units of equal size whose collectives take exactly `collective` seconds.
struct Setup {
  static constexpr double kCollective = 10e-3;
  static constexpr int kUnits = 3;
  static constexpr int kWorld = 4;
  static constexpr std::uint64_t kElements = 1 << 20;

  explicit Setup(const ts::Options& options)
      : tensors(kUnits, ts::PointerTensor<float>(pointers[0], {kElements})),
        model(ts::Mesh<ts::Sim>(ts::SimCommunicator(kWorld, {kCollective, 1e30}),
                                {.flops_per_second = 1, .memory_bytes_per_second = 1e30}),
              ts::AdamW{}, options) {
    for (int u = 0; u < kUnits; ++u) {
      units.push_back(
          model.add_unit("unit" + std::to_string(u), ts::tensor(pointers[u], {kElements})));
    }
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
  }

  ts::StepReport step(double forward_seconds, double backward_seconds) {
    for (ts::Unit unit : units) {
      auto lease = model.forward(unit, ts::Cost{.flops = forward_seconds});
    }
    for (std::size_t u = units.size(); u-- > 0;) {
      auto lease = model.backward(units[u], ts::Cost{.flops = backward_seconds});
    }
    return model.step().get();
  }

  float* pointers[kUnits] = {};
  std::vector<ts::PointerTensor<float>> tensors;
  Model model;
  std::vector<ts::Unit> units;
};

}  // namespace

TEST_CASE("P047: overlapped, only the first gather and the last reduction are exposed") {
  Setup setup({.prefetch_depth = 1});
  setup.step(25e-3, 50e-3);
  const ts::StepReport report = setup.step(25e-3, 50e-3);
  // Forward 10 + 3 * 25, backward 10 + 3 * 50 (the turn: the last unit is gathered again) + 10,
  // and the norm's small all-gather, which has the same latency here.
  CHECK(report.step_ms == doctest::Approx(85 + 170 + 10).epsilon(1e-6));
  CHECK(report.exposed_ms == doctest::Approx(10 + 10 + 10 + 10).epsilon(1e-6));
  CHECK(report.compute_ms == doctest::Approx(3 * 25 + 3 * 50).epsilon(1e-6));
  CHECK(report.communication_ms == doctest::Approx(10 * (3 + 3 + 3 + 1)).epsilon(1e-6));
}

TEST_CASE("sequential, every collective is exposed") {
  Setup setup({.schedule = ts::Schedule::sequential});
  setup.step(25e-3, 50e-3);
  const ts::StepReport report = setup.step(25e-3, 50e-3);
  CHECK(report.step_ms == doctest::Approx(3 * 25 + 3 * 50 + 10 * 10).epsilon(1e-6));
  CHECK(report.exposed_ms == doctest::Approx(100).epsilon(1e-6));
}

TEST_CASE("bytes and memory are the plan's, for a model no machine here could hold") {
  constexpr int kLayers = 126;
  constexpr std::int64_t kWidth = 16384;
  std::vector<float*> weights(kLayers, nullptr);
  Model model(ts::Mesh<ts::Sim>(ts::SimCommunicator(512)));
  std::vector<ts::Unit> units;
  for (int l = 0; l < kLayers; ++l) {
    units.push_back(
        model.add_unit("layer" + std::to_string(l),
                       ts::tensor(weights[static_cast<std::size_t>(l)], {12, kWidth, kWidth})));
  }
  model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
  ts::StepReport report;
  for (int step = 0; step < 2; ++step) {
    for (ts::Unit unit : units) auto lease = model.forward(unit);
    for (std::size_t u = units.size(); u-- > 0;) auto lease = model.backward(units[u]);
    report = model.step().get();
  }
  const ts::Plan plan = model.plan();
  CHECK(report.collectives == plan.collectives);
  CHECK(report.peak_bytes == plan.most_used_bytes);
  CHECK(plan.most_used_bytes == plan.total_bytes());
  const std::uint64_t elements = std::uint64_t{12} * kWidth * kWidth * kLayers;
  CHECK(plan.state_bytes() == elements / 512 * 16);
  CHECK(report.collectives[ts::CollectiveKind::all_gather].bytes == 2 * elements * 4 / 512 * 511);
  CHECK(report.collectives[ts::CollectiveKind::reduce_scatter].bytes == elements * 4 / 512 * 511);
}
