// Several micro-steps a step: reduced each time or once, in scopes and by hand.
#include "support.hpp"

using namespace engine_test;

namespace {

const ts::Options kOnce{.accumulation = ts::Accumulation::reduce_once};

}  // namespace

TEST_CASE("B020, B024, P066, P067: any pattern of held-back micro-steps is the same sum") {
  // Dyadic gradients: where other numbers agree to a tolerance, these must agree exactly.
  for (const char* pattern : {"rrrr", "hhhr", "rhhr", "hrhr", "r", "hr"}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(4, [&](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, {{"a", {200}}, {"b", {3, 77}}, {"c", {0, 500}}}, kOnce);
        for (int s = 0; s < 3; ++s) {
          std::uint64_t reduced = 0;
          for (int micro = 0; pattern[micro] != '\0'; ++micro) {
            toy.forward_all();
            if (pattern[micro] == 'h') {
              const auto scope = toy.model.accumulate();
              toy.backward_all(micro);
            } else {
              toy.backward_all(micro);
              reduced += 3;
            }
          }
          CHECK(reductions(toy.step()) == reduced);
        }
        toy.check();
      });
    });
  }
}

TEST_CASE("B020, P068: 2, 5 and 3 micro-steps a step under reduce_each") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(3));
      for (int micro_steps : {2, 5, 3}) {
        const ts::StepReport report = toy.whole_step(micro_steps);
        CHECK(reductions(report) == 3 * static_cast<std::uint64_t>(micro_steps));
      }
      CHECK(toy.whole_step().step == 4);  // one update a step(), whatever the micro-steps
    });
  });
}

TEST_CASE("B023, P067: a reduced gradient is not reduced again") {
  // The same input in each of 5 micro-steps: the norm grows by 1 an addition, not by W.
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(4, [](under_test::Ranks ranks) {
      std::span<float> w(static_cast<float*>(nullptr), 256);
      ShardOf<Strategy> model(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 0});
      const ts::Unit unit = model.add_unit("u", w);
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      for (int s = 0; s < 2; ++s) {
        for (int micro_steps : {1, 5}) {
          for (int micro = 0; micro < micro_steps; ++micro) {
            { const auto lease = model.forward(unit); }
            auto lease = model.backward(unit);
            std::fill_n(lease.gradient(w).data, 256, 0.5f);
          }
          CHECK(model.step().get().norm == 8.0 * micro_steps);  // sqrt(256) / 2
        }
      }
    });
  });
}

TEST_CASE("B026: step() while a unit holds unreduced gradients is an error that names it") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(2), kOnce);
      toy.forward_all();
      {
        const auto scope = toy.model.accumulate();
        toy.backward(1);
      }
      toy.backward(0);
      const std::string message = error_of([&] { toy.model.step(); });
      CHECK_SAYS(message, "unit '1'");
      CHECK_SAYS(message, "reduce_gradients()");
      toy.model.reduce_gradients();  // nothing was changed: the step can still be ended
      toy.step();
      toy.whole_step();
      toy.check();
    });
  });
}

TEST_CASE("P064: reduce_gradients acts once: factor 3, two contributions of 3 at W = 2 give 4") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      std::span<float> w(static_cast<float*>(nullptr), 3);
      ts::Options options = kOnce;
      options.gradient_divisor = 3;
      ShardOf<Strategy> model(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 1}, options);
      const ts::Unit unit = model.add_unit("u", w);
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
      const auto contribute = [&] {
        auto lease = model.backward(unit);
        const auto gradient = lease.gradient(w);
        for (float& value : gradient.span()) value = gradient.accumulate ? value + 3 : 3;
      };
      const auto reduced = [&](float expected) {
        const std::vector<float> now = model.full(ts::State::gradient(), w);
        for (float value : now) CHECK(value == doctest::Approx(expected).epsilon(1e-6));
      };
      contribute();
      model.reduce_gradients();
      reduced(2);
      {
        const auto scope = model.accumulate();
        contribute();
      }
      model.reduce_gradients();
      model.reduce_gradients();
      reduced(4);
      const ts::StepReport report = model.step().get();
      CHECK(reductions(report) == 2);
      for (float value : model.full(ts::State::parameter(), w)) {
        CHECK(value == doctest::Approx(-4).epsilon(1e-6));
      }
    });
  });
}

TEST_CASE("P069: mean or sum: weight 0, inputs 1 and 2, rate 1, W = 2") {
  const float inputs[] = {1, 2};
  const auto run = [&](float divisor, float unit_divisor, float factor) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(2, [&](under_test::Ranks ranks) {
        std::span<float> w(static_cast<float*>(nullptr), 2);
        ShardOf<Strategy> model(ts::Mesh<under_test::Backend>(ranks), {.learning_rate = 1},
                                {.gradient_divisor = divisor});
        const ts::Unit unit =
            model.add_unit("u", ts::UnitOptions{.gradient_divisor = unit_divisor}, w);
        model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
        {
          auto lease = model.backward(unit);
          std::copy(inputs, inputs + 2, lease.gradient(w).data);
        }
        model.step();
        const std::vector<float> now = model.full(ts::State::parameter(), w);
        CHECK(now == std::vector<float>{-factor * inputs[0], -factor * inputs[1]});
      });
    });
  };
  run(0, 0, 1);  // the mean
  run(1, 0, 2);  // the sum
  run(4, 0, 0.5f);
  run(0, 1, 2);  // P100: the unit's own
  run(1, 4, 0.5f);
}

TEST_CASE("P100, B032: a divisor set on one unit leaves the others at the default") {
  under_test::run_ranks(4, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, {{"a", {100}}, {"b", {100}, {}, {.gradient_divisor = 8}}});
    toy.forward_all();
    toy.backward_all();
    for (double& value : toy.reference.gradients[1]) value /= 2;  // by 8, not by 4
    toy.step();
    toy.check();
  });
}

TEST_CASE("P063: unreduced gradients can be read and edited, and keep their address") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(2), kOnce);
      toy.forward_all();
      CHECK_SAYS(error_of([&] { (void)toy.model.pending_gradient(toy.tensor(1)); }), "'1.0'");
      const float* address = nullptr;
      for (int micro = 0; micro < 2; ++micro) {
        const auto scope = toy.model.accumulate();
        toy.backward(1, micro);
        const std::span<float> pending = toy.model.pending_gradient(toy.tensor(1));
        REQUIRE(pending.size() == 256);
        if (micro == 0) address = pending.data();
        CHECK(pending.data() == address);
        if (micro == 0) {
          CHECK(pending[9] == gradient_at(toy.rank(), 0, 1, 9, first_value(1, 9)));
        }
      }
      for (float& value : toy.model.pending_gradient(toy.tensor(1))) value *= 2;
      for (double& value : toy.reference.gradients[1]) value *= 2;
      toy.backward(0);
      toy.model.reduce_gradients();
      const ts::StepReport report = toy.step();
      CHECK(reductions(report) == 2);
      toy.check();
    });
  });
}

TEST_CASE("P065: backward in two passes, input gradients and then weight gradients") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(3), kOnce);
    for (int s = 0; s < 2; ++s) {
      for (int micro = 0; micro < 3; ++micro) {
        const bool last = micro == 2;
        toy.forward_all();
        for (int u : {2, 1, 0}) toy.forward(u);  // weights only: input gradients
        if (last) {
          for (int u : {2, 1, 0}) toy.backward(u, micro);
        } else {
          const auto scope = toy.model.accumulate();
          for (int u : {2, 1, 0}) toy.backward(u, micro);
        }
      }
      CHECK(reductions(toy.step()) == 3);
    }
    toy.check();
  });
}

TEST_CASE("P070: half of the tensors in odd micro-steps, the other half in even ones") {
  for (const ts::Options& options : {ts::Options{}, kOnce}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(2, [&](under_test::Ranks ranks) {
        Toy<Strategy> toy(ranks, {{"a", {100, 70}}, {"b", {64, 65}}}, options, {.poison = true});
        for (int s = 0; s < 2; ++s) {
          for (int micro = 0; micro < 4; ++micro) {
            const auto backward = [&] {
              for (int u : {1, 0}) toy.backward(u, micro, micro % 2);
            };
            toy.forward_all();
            if (micro < 3 && options.accumulation == ts::Accumulation::reduce_once) {
              const auto scope = toy.model.accumulate();
              backward();
            } else {
              backward();
            }
          }
          toy.step();
        }
        toy.check();
      });
    });
  }
}

TEST_CASE("P149: step() inside a scope, nested scopes and scopes without buffers are errors") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(2));
    {
      const auto scope = toy.model.accumulate();
      CHECK_SAYS(error_of([&] { toy.model.step(); }), "step() inside accumulate()");
      CHECK_SAYS(error_of([&] { (void)toy.model.accumulate(); }), "inside accumulate()");
      CHECK_SAYS(error_of([&] { toy.model.step(); }), "step() inside accumulate()");  // still open
      CHECK_SAYS(error_of([&] { (void)toy.model.backward(toy.unit(0)); }),
                 "Accumulation::reduce_once");
    }
    {
      const auto scope = toy.model.evaluate();
      CHECK_SAYS(error_of([&] { toy.model.step(); }), "step() inside evaluate()");
      CHECK_SAYS(error_of([&] { (void)toy.model.evaluate(); }), "inside evaluate()");
      CHECK_SAYS(error_of([&] { (void)toy.model.backward(toy.unit(0)); }), "inside evaluate()");
    }
    {
      const auto lease = toy.model.forward(toy.unit(1));
      CHECK_SAYS(error_of([&] { toy.model.step(); }), "unit '1'");
      CHECK_SAYS(error_of([&] { (void)toy.model.evaluate(); }), "unit '1'");
      CHECK_SAYS(error_of([&] { toy.model.reshard(toy.unit(1)); }), "unit '1'");
    }
    toy.whole_step();  // nothing of that did any harm
    toy.check();
  });
}
