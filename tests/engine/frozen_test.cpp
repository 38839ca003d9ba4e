// Frozen tensors and units, tensors the user keeps, parameter groups and weight decay.
#include "support.hpp"

using namespace engine_test;

namespace {}  // namespace

TEST_CASE("P089, B016: with biases alone trainable the reduction carries the biases alone") {
  const std::vector<UnitSpec> units = {
      {"0", {128 * 32, 128}, {0}}, {"1", {128 * 32, 128}, {0}}, {"2", {128 * 32, 128}, {0}}};
  for_each_strategy([&]<class Strategy>() {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, units);
      for (int s = 0; s < 3; ++s) {
        const ts::StepReport report = toy.whole_step();
        CHECK(reductions(report) == 3);
        CHECK(report.collectives[ts::CollectiveKind::reduce_scatter].bytes == 3 * 128 * 4 / 2);
        CHECK(report.norm > 0);
      }
      toy.check();
    });
  });
}

TEST_CASE("B015, B016: gradient, moment and master bytes follow the trainable elements only") {
  // 99 % frozen: 201,510,912 against 131,072 elements in the field, the same ratio here.
  const std::vector<UnitSpec> units = {{"u", {196608, 128}, {0}}};
  for_each_strategy([&]<class Strategy>() {
    Toy<Strategy> toy(under_test::Ranks(), units);
    const ts::Plan plan = toy.model.plan();
    CHECK(line(plan, "moments") == 128 * 4);
    CHECK(line(plan, "reduced gradients") == 128 * 4);
    CHECK(plan.units[0].gradients == 128 * 4);
    const std::uint64_t weights = (196608 + 128) * 4;
    CHECK(line(plan, "parameters") == weights);
    CHECK(line(plan, "step scalars") <= 2048);
    CHECK(plan.total_bytes() <= weights + 3 * 128 * 4 + 2048);
  });
}

TEST_CASE("P091, P090, B018: frozen units among others: no moments, gradients or reductions") {
  const std::vector<UnitSpec> units = {{"0", {256}, {0}}, {"1", {256}},      {"2", {256}, {0}},
                                       {"3", {100, 50}},  {"4", {256}, {0}}, {"5", {256}}};
  for_each_strategy([&]<class Strategy>() {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, units);
      for (int s = 0; s < 3; ++s) {
        const ts::StepReport report = toy.whole_step();
        CHECK(reductions(report) == 3);
        // After the first step the plan holds: frozen parameters that stay are not gathered again.
        if (s > 0) CHECK(report.collectives == toy.model.plan().collectives);
      }
      toy.check();
      CHECK(toy.model.plan().units[0].gradients == 0);
      CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::moment(0), toy.tensor(0)); }),
                 "'0.0' is frozen");
      CHECK_SAYS(error_of([&] {
                   auto lease = toy.model.backward(toy.unit(0));
                   (void)lease.gradient(toy.tensor(0));
                 }),
                 "'0.0' is frozen");
    });
  });
}

TEST_CASE("B017, B071: adapters in 8 units at W = 8: every one of them gets its gradient") {
  std::vector<UnitSpec> units;
  for (int u = 0; u < 8; ++u) units.push_back({std::to_string(u), {700, 24}, {0}});
  under_test::run_ranks(8, [&](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, units);
    toy.forward_all();
    toy.backward_all();
    for (int u = 0; u < 8; ++u) {
      const std::vector<float> gradient = toy.model.full(ts::State::gradient(), toy.tensor(u, 1));
      CHECK(differences(gradient, toy.reference.gradients[toy.id(u, 1)]) == 0);
    }
    CHECK(reductions(toy.step()) == 8);
    toy.check();
  });
}

TEST_CASE("P094: weight decay and learning rate by group reach the right elements") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      const auto empty = [](std::size_t n) {
        return std::span<float>(static_cast<float*>(nullptr), n);
      };
      auto frozen = empty(9), weight = empty(9), bias = empty(3), scaled = empty(70);
      const ts::Options options{
          .groups = {{}, {.weight_decay = 0.25f}, {.learning_rate_scale = 2}, {}}};
      ShardOf<Strategy> model(ts::Mesh<under_test::Backend>(ranks),
                              {.learning_rate = 0.5f, .weight_decay = 0.5f}, options);
      const ts::Unit unit =
          model.add_unit("u", ts::frozen(frozen), ts::named("w", ts::in_group(weight, 1)),
                         ts::no_decay(bias), ts::in_group(scaled, 2));
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      {
        auto lease = model.backward(unit);
        for (std::span<float>* tensor : {&weight, &bias, &scaled}) {
          const auto gradient = lease.gradient(*tensor);
          std::fill_n(gradient.data, gradient.size, 0.25f);
        }
      }
      CHECK_FALSE(model.step().get().skipped);
      const auto all = [&](std::span<float>& tensor, float value) {
        CHECK(model.full(ts::State::parameter(), tensor) ==
              std::vector<float>(tensor.size(), value));
      };
      all(frozen, 1);
      all(weight, 1 - 0.5f * (0.25f + 0.25f));
      all(bias, 1 - 0.5f * 0.25f);
      all(scaled, 1 - 2 * 0.5f * (0.25f + 0.5f));
    });
  });
}

TEST_CASE("P094: a tensor in a group that Options does not have is an error before the update") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<float> w(static_cast<float*>(nullptr), 9);
    ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(ranks)};
    const ts::Unit unit = model.add_unit("u", ts::named("w", ts::in_group(w, 3)));
    const auto all = [&] {
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      { const auto lease = model.backward(unit); }
      model.step();
    };
    const std::string message = error_of(all);
    CHECK_SAYS(message, "'u.w'");
    CHECK_SAYS(message, "group 3");
  });
}

TEST_CASE("P093: tensors left to the user are neither moved nor touched") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::vector<float> own(64, 1.0f);  // replicated, reduced by the user on a channel of their own
    const float* const address = own.data();
    under_test::Ranks channel = ranks.channel();
    ts::HostStream stream(ts::HostStream::Where::caller);
    Toy<ts::Zero3<>> toy(ranks, blocks(2));
    for (int s = 0; s < 3; ++s) {
      toy.forward_all();
      toy.backward_all();
      std::vector<float> gradient(64, static_cast<float>(ranks.rank() + 1));
      std::vector<float> sum(64);
      const ts::ReduceSegment halves[] = {{gradient.data(), ts::DType::f32, sum.data(), 64, 0}};
      channel.reduce_scatter(stream, {ts::CollectiveKind::reduce_scatter, "own"}, halves);
      for (std::size_t i = 0; i < 64; ++i) own[i] -= sum[i] / 4;
      const ts::StepReport report = toy.step();
      CHECK(reductions(report) == 2);  // the user's own collectives are the user's
      CHECK(own == std::vector<float>(64, 1 - 0.75f * static_cast<float>(s + 1)));
    }
    CHECK(own.data() == address);
    toy.check();
  });
}
