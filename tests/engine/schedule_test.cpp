// Programs other than one forward and one backward: repeated, partial, nested and idle leases.
#include "support.hpp"

using namespace engine_test;

namespace {

// `body(toy)` on 2 ranks for each strategy, with reused memory poisoned.
template <class Body>
void on_two_ranks(const std::vector<UnitSpec>& units, const ts::Options& options, Body&& body) {
  for_each_strategy([&]<class Strategy>() {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, units, options, {.poison = true});
      body(toy);
      toy.check();
    });
  });
}

}  // namespace

TEST_CASE("P026, B060: two forwards, then two backwards, in either nesting") {
  on_two_ranks(blocks(3), {}, [](auto& toy) {
    for (int s = 0; s < 2; ++s) {
      toy.forward_all();
      toy.forward_all();
      toy.backward_all(0);
      toy.backward_all(1);
      CHECK(reductions(toy.step()) == 6);
    }
    toy.forward_all();
    toy.forward_all();
    for (int u : {2, 1, 0}) {  // one backward over both
      toy.backward(u, 0);
      toy.backward(u, 1);
    }
    CHECK(reductions(toy.step()) == 6);
  });
}

TEST_CASE("P026: two forwards gather twice, once where units are kept until after backward") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> reshards(ranks, blocks(3));
    Toy<Keep> keeps(ranks, blocks(3));
    for (int s = 0; s < 3; ++s) {
      reshards.forward_all();
      reshards.forward_all();
      reshards.backward_all();
      const ts::StepReport report = reshards.step();
      CHECK(report.order_changed == (s == 0));
      if (s > 0) CHECK(gathers(report) == 9);  // the first step gathers ahead what is not next
      keeps.forward_all();
      keeps.forward_all();
      keeps.backward_all();
      CHECK(gathers(keeps.step()) == 3);
    }
  });
}

TEST_CASE("P027, B060: units leased several times in a forward, in two interleavings") {
  on_two_ranks(blocks(3), {}, [](auto& toy) {
    const std::vector<std::vector<int>> orders = {{0, 1, 0, 2, 1, 2, 0, 1, 2, 0, 1, 2},
                                                  {0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}};
    for (const std::vector<int>& order : orders) {
      for (int u : order) toy.forward(u);
      for (auto u = order.rbegin(); u != order.rend(); ++u) {
        toy.backward(*u, static_cast<int>(u - order.rbegin()));
      }
      CHECK(reductions(toy.step()) == 12);
    }
  });
}

TEST_CASE("P030, B003: a unit that is not used in backward keeps its values; the rest trains") {
  on_two_ranks(blocks(2), {}, [](auto& toy) {
    for (int s = 0; s < 3; ++s) {
      toy.forward_all();
      toy.backward(0);
      if (s == 1) toy.backward(1);
      CHECK_FALSE(toy.step().skipped);
    }
  });
}

TEST_CASE("P031: two backwards over one forward: the trunk is reduced in both, an idle head is 0") {
  on_two_ranks(blocks(3), {}, [](auto& toy) {
    toy.forward_all();
    toy.backward(1, 0);
    { const auto idle = toy.model.backward(toy.unit(2)); }  // no gradient asked for
    toy.backward(0, 0);
    toy.backward(2, 1);
    toy.backward(0, 1);
    CHECK(reductions(toy.step()) == 5);
  });
}

TEST_CASE("P033: a norm, then a head in 4 chunks: every chunk adds its part") {
  // Unit 1 holds the norm (tensor 0) and the head (tensor 1).
  const std::vector<UnitSpec> units = {{"body", {256}}, {"norm and head", {32, 1024}}};
  on_two_ranks(units, {}, [](auto& toy) {
    for (int s = 0; s < 2; ++s) {
      toy.forward(0);
      for (int chunk = 0; chunk < 5; ++chunk) toy.forward(1);
      for (int chunk = 0; chunk < 4; ++chunk) toy.backward(1, chunk, 1);  // 4 leases
      toy.backward(1, 0, 0);
      toy.backward(0);
      CHECK(reductions(toy.step()) == 6);
    }
    toy.forward(0);
    {
      const auto outer = toy.model.forward(toy.unit(1));  // under it the chunks gather nothing
      for (int chunk = 0; chunk < 4; ++chunk) toy.forward(1);
    }
    {
      auto lease = toy.model.backward(toy.unit(1));  // one lease, written 4 times
      for (int chunk = 0; chunk < 4; ++chunk) {
        toy.write_gradients(1, lease, chunk, 1);
        toy.expect_gradients(1, chunk, 1);
      }
      toy.write_gradients(1, lease, 0, 0);
      toy.expect_gradients(1, 0, 0);
    }
    toy.backward(0);
    CHECK(reductions(toy.step()) == 2);
  });
}

TEST_CASE("P033: chunks under an outer lease gather nothing") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(1));
    for (int s = 0; s < 2; ++s) {
      {
        const auto outer = toy.model.forward(toy.unit(0));
        for (int chunk = 0; chunk < 4; ++chunk) toy.forward(0);
      }
      toy.backward(0);
      // The recorded order repeats; in the first step each lease is a surprise.
      CHECK(gathers(toy.step()) == 2);
    }
  });
}

TEST_CASE("P033: nested backward leases of one unit reduce once, when the outermost ends") {
  on_two_ranks(blocks(2), {}, [](auto& toy) {
    toy.forward_all();
    {
      auto outer = toy.model.backward(toy.unit(1));
      toy.write_gradients(1, outer, 0);
      toy.expect_gradients(1, 0);
      auto inner = toy.model.backward(toy.unit(1));
      CHECK(inner.gradient(toy.tensor(1)).accumulate);
      toy.write_gradients(1, inner, 1);
      toy.expect_gradients(1, 1);
    }
    toy.backward(0);
    CHECK(reductions(toy.step()) == 2);
  });
}

TEST_CASE("P034: two partial forwards, then one backward") {
  on_two_ranks({{"trunk", {100}}, {"used", {30, 30}}, {"unused", {64}}}, {}, [](auto& toy) {
    toy.forward(0);
    toy.forward(1);
    toy.forward(0);
    toy.backward(1, 0, 1);
    toy.backward(0);
    const ts::StepReport report = toy.step();
    CHECK(report.norm > 0);
    CHECK_FALSE(report.skipped);
    toy.whole_step();
  });
}

TEST_CASE("P038, B066, B063: ranks write different gradients, or none; the missing part is 0") {
  on_two_ranks({{"shared", {200}}, {"two experts", {90, 130}}, {"expert", {70}}}, {},
               [](auto& toy) {
                 for (int s = 0; s < 2; ++s) {
                   toy.forward_all();
                   {
                     // Only the last rank's batch reaches this expert; the others take part all the
                     // same.
                     auto lease = toy.model.backward(toy.unit(2));
                     if (toy.rank() == 1) toy.write_gradients(2, lease);
                   }
                   {
                     auto lease = toy.model.backward(toy.unit(1));
                     toy.write_gradients(1, lease, 0, toy.rank());  // rank r uses expert r
                   }
                   {
                     const auto lease = toy.model.backward(toy.unit(0));
                   }  // an empty batch on every rank
                   const auto expect = [&](int u, std::size_t t, int rank) {
                     const std::uint32_t id = toy.id(u, t);
                     auto& sum = toy.reference.gradients[id];
                     sum.resize(toy.reference.weights[id].size());
                     for (std::uint64_t i = 0; i < sum.size(); ++i) {
                       const auto weight = static_cast<float>(toy.reference.weights[id][i]);
                       sum[i] = gradient_at(rank, 0, id, i, weight) / 2.0;
                     }
                   };
                   expect(1, 0, 0);
                   expect(1, 1, 1);
                   expect(2, 0, 1);
                   CHECK_FALSE(toy.step().skipped);
                 }
               });
}

TEST_CASE("P044: a unit with a used and a never used tensor: a gather each way, one reduction") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, {{"a", {128}}, {"b", {128, 300}}, {"c", {128}}});
    for (int s = 0; s < 3; ++s) {
      toy.forward_all();
      toy.backward(2);
      toy.backward(1, 0, 0);
      toy.backward(0);
      const ts::StepReport report = toy.step();
      CHECK_FALSE(report.order_changed);
      CHECK(gathers(report) == 6);
      CHECK(reductions(report) == 3);
    }
    toy.check();
  });
}

TEST_CASE("P040: 1F1B: 3 micro-steps with everything gathered ahead, reduced on the last only") {
  const ts::Options options{.prefetch_depth = 8,
                            .accumulation = ts::Accumulation::reduce_once,
                            .gathered_bytes = 1 << 20};
  on_two_ranks(blocks(3), options, [](auto& toy) {
    for (int s = 0; s < 2; ++s) {
      const auto hold_back = [&](int micro) {
        const auto scope = toy.model.accumulate();
        toy.backward_all(micro);
      };
      toy.forward_all();
      toy.forward_all();
      hold_back(0);
      toy.forward_all();
      hold_back(1);
      toy.backward_all(2);
      CHECK(reductions(toy.step()) == 3);
    }
  });
}

TEST_CASE("P041, B059: another unit's tensors are null without its lease, right with it") {
  on_two_ranks(blocks(2), {}, [](auto& toy) {
    for (int s = 0; s < 2; ++s) {
      {
        const auto b = toy.model.forward(toy.unit(1));
        CHECK(toy.tensor(0).data() == nullptr);
        const auto a = toy.model.forward(toy.unit(0));
        toy.check_weights(0);
        toy.check_weights(1);
      }
      CHECK(toy.tensor(0).data() == nullptr);
      CHECK(toy.tensor(1).data() == nullptr);
      {
        auto b = toy.model.backward(toy.unit(1));
        CHECK_SAYS(error_of([&] { (void)b.gradient(toy.tensor(0)); }), "not in unit '1'");
        toy.write_gradients(1, b);
        toy.expect_gradients(1);
      }
      toy.backward(0);
      toy.step();
    }
  });
}

TEST_CASE("P028: tensors are there in leases only, whatever the rule, and equal the reference") {
  on_two_ranks(blocks(2), {.gathered_bytes = 1024}, [](auto& toy) {
    CHECK(toy.tensor(0).data() == nullptr);
    toy.forward(0);
    CHECK(toy.tensor(0).data() == nullptr);
    toy.model.reshard(toy.unit(0));
    toy.backward(0);
    CHECK(toy.tensor(0).data() == nullptr);
    CHECK(toy.tensor(0).size() == 256);  // its extents stay
    toy.step();
  });
}
