// Registration and options: what is refused, in which words, and when.
#include <limits>

#include "support.hpp"

using namespace engine_test;

namespace {

using Model = ShardOf<ts::Zero3<>>;

Model make(const ts::Options& options = {}, const ts::Sgd& optimizer = {}) {
  return Model(ts::Mesh<under_test::Backend>::single(), optimizer, options);
}

struct Strided {
  float* data = nullptr;
  bool dense = false;
};

}  // namespace

template <>
struct tessera::TensorTraits<Strided> {
  using element = float;
  static Shape shape(const Strided&) { return {8, 8, 3, 3}; }
  static float* data(Strided& tensor) { return tensor.data; }
  static void rebind(Strided& tensor, float* memory) { tensor.data = memory; }
  static bool contiguous(const Strided& tensor) { return tensor.dense; }
};

TEST_CASE("options: values that make no sense are refused by the constructor and named") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto message = [](const ts::Options& options) {
    return error_of([&] { (void)make(options); });
  };
  CHECK_SAYS(message({.prefetch_depth = -1}), "prefetch_depth");
  CHECK_SAYS(message({.reductions_in_flight = -1}), "reductions_in_flight");
  CHECK_SAYS(message({.clip_norm = -1}), "clip_norm");
  CHECK_SAYS(message({.clip_norm = nan}), "clip_norm");
  CHECK_SAYS(message({.gradient_divisor = -2}), "gradient_divisor");
  CHECK_SAYS(message({.gradient_divisor = nan}), "gradient_divisor");
  for (const float bad : {std::numeric_limits<float>::infinity(), 1e-45f, 1.1e-38f}) {
    CHECK_SAYS(message({.clip_norm = bad}), "clip_norm");
    CHECK_SAYS(message({.gradient_divisor = bad}), "gradient_divisor");
  }
  CHECK_SAYS(message({.norm = static_cast<ts::NormKind>(9)}), "Options::norm is 9");
  CHECK_SAYS(message({.groups = {{.learning_rate_scale = nan}}}), "learning_rate_scale");
  CHECK_SAYS(message({.groups = {{.weight_decay = nan}}}), "weight_decay");
  Model model = make();
  CHECK_SAYS(error_of([&] { model.add_unit("u", ts::UnitOptions{.gradient_divisor = -3}); }),
             "gradient_divisor");
  CHECK_SAYS(error_of([&] { model.add_unit("u", ts::UnitOptions{.gradient_divisor = 1e-45f}); }),
             "gradient_divisor");
  CHECK_NOTHROW((void)make({.clip_norm = -0.0f, .gradient_divisor = 1e-37f}));
  CHECK_NOTHROW((void)make({.prefetch_depth = 1000, .reductions_in_flight = 1000}));
}

TEST_CASE("options: hyperparameters that make no sense are refused by the constructor") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK_SAYS(error_of([] { (void)make({}, {.learning_rate = -1}); }), "learning_rate");
  CHECK_SAYS(error_of([&] { (void)make({}, {.learning_rate = inf}); }), "learning_rate");
  CHECK_SAYS(error_of([] { (void)make({}, {.momentum = 1}); }), "momentum");
  CHECK_SAYS(error_of([] { (void)make({}, {.weight_decay = -1}); }), "weight_decay");
}

TEST_CASE("P002: a unit's name that is taken is refused and named; 3 MLPs and a root are 4 units") {
  std::vector<std::vector<float>> weights(7, std::vector<float>(8 * 32));
  std::vector<float> more(3);
  Model model = make();
  for (std::size_t u = 0; u < 3; ++u) {
    (void)model.add_unit("mlp" + std::to_string(u), weights[2 * u], weights[2 * u + 1]);
  }
  (void)model.add_unit("root", weights[6]);
  CHECK(model.plan().units.size() == 4);
  CHECK_SAYS(error_of([&] { (void)model.add_unit("mlp1", more); }), "'mlp1'");
  CHECK(model.plan().units.size() == 4);
  CHECK_NOTHROW((void)model.add_unit("mlp3", more));  // it was not taken by the failed one
}

TEST_CASE("P007: tensors have the registered names, units only what no other unit took") {
  std::vector<float> a(3), b(4), c(5);
  Model model = make();
  (void)model.add_unit("layer", ts::named("weight", a), b);
  (void)model.add_unit("root", a, c);  // a stays with the layer
  const std::vector<ts::TensorInfo> infos = model.tensors();
  REQUIRE(infos.size() == 3);
  CHECK(infos[0].name == "layer.weight");
  CHECK(infos[1].name == "layer.1");
  CHECK(infos[2].unit == "root");
  CHECK(infos[2].shape == ts::Shape{5});
  CHECK(infos[2].id == 2);
  CHECK_SAYS(error_of([&] {
               std::vector<float> d(3), e(3);
               (void)model.add_unit("twice", ts::named("w", d), ts::named("w", e));
             }),
             "'twice.w'");
}

TEST_CASE("P145: a 0-d tensor is one element; a strided one is refused with name and remedy") {
  float* scalar = nullptr;
  Strided strided;
  Model model = make();
  const ts::Unit unit = model.add_unit("scalar", ts::tensor(scalar, {}));
  const std::string message =
      error_of([&] { (void)model.add_unit("conv", ts::named("kernel", strided)); });
  CHECK_SAYS(message, "'conv.kernel'");
  CHECK_SAYS(message, "[8, 8, 3, 3]");
  CHECK_SAYS(message, "contiguous");
  strided.dense = true;
  (void)model.add_unit("conv", ts::named("kernel", strided));
  model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 7.0f; });
  const auto lease = model.forward(unit);
  CHECK(*scalar == 7);
}

TEST_CASE("P146: a lease before materialize lists every tensor without memory") {
  std::vector<std::vector<float>> weights(4, std::vector<float>(9));
  Model model = make();
  const ts::Unit unit = model.add_unit("a", ts::named("in", weights[0]), weights[1]);
  (void)model.add_unit("b", ts::named("in", weights[2]), weights[3]);
  const auto lists_all = [](const std::string& message) {
    for (const char* name : {"a.in", "a.1", "b.in", "b.1", "materialize()"}) {
      CHECK_SAYS(message, name);
    }
  };
  lists_all(error_of([&] { (void)model.forward(unit); }));
  lists_all(error_of([&] { (void)model.backward(unit); }));
  lists_all(error_of([&] { (void)model.step(); }));
  lists_all(error_of([&] { (void)model.full(ts::State::parameter(), weights[0]); }));
}

TEST_CASE("P148, B019: a type that the precision does not train is refused by name") {
  std::vector<ts::bf16> half(9);
  Model model = make();
  const std::string message = error_of([&] { (void)model.add_unit("u", ts::named("w", half)); });
  CHECK_SAYS(message, "'u.w' is bf16");
  CHECK_SAYS(message, "precision fp32");
  CHECK_SAYS(message, "frozen(tensor)");
  CHECK_NOTHROW((void)model.add_unit("u", ts::named("w", ts::frozen(half))));
}

TEST_CASE("misuse: add_unit and materialize after materialize, a unit of another Shard") {
  std::vector<float> w(9), more(9);
  Model model = make();
  (void)model.add_unit("u", w);
  model.materialize(ts::from_tensors);
  CHECK_SAYS(error_of([&] { (void)model.add_unit("v", more); }), "'v'");
  CHECK_SAYS(error_of([&] { model.materialize(ts::from_tensors); }), "twice");
  CHECK_SAYS(error_of([&] { (void)model.forward(ts::Unit{1}); }), "no unit 1");
  CHECK_SAYS(error_of([&] { (void)model.backward(ts::Unit{9}); }), "no unit 9");
  CHECK_SAYS(error_of([&] { model.reshard(ts::Unit{9}); }), "no unit 9");
}

TEST_CASE("misuse: a tensor that was resized, found when the lease opens") {
  std::vector<float> w(9);
  Model model = make();
  const ts::Unit unit = model.add_unit("u", ts::named("w", w));
  model.materialize(ts::from_tensors);
  w.resize(5);
  const std::string message = error_of([&] { (void)model.forward(unit); });
  CHECK_SAYS(message, "'u.w'");
  CHECK_SAYS(message, "[9]");
  CHECK_SAYS(message, "[5]");
  w.resize(9);
  CHECK_SAYS(error_of([&] { (void)model.forward(unit); }), "'u.w'");  // until the reset
  model.reset();
  CHECK_NOTHROW((void)model.forward(unit));
}

TEST_CASE("materialize that throws gives its memory back and may be called again") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<float> w(static_cast<float*>(nullptr), 300);
    std::vector<float> copied(5, 2.0f);
    Model model(ts::Mesh<under_test::Backend>(ranks), ts::Sgd{.learning_rate = 0.5f});
    const ts::Unit unit = model.add_unit("u", w, copied);
    const auto thrower = [](const ts::TensorInfo& info, std::uint64_t i) -> float {
      if (info.id == 1 && i == 4) throw std::runtime_error("no values");
      return 1;
    };
    for (int i = 0; i < 2; ++i) {
      // The element is one rank's, whose call fails alone.
      if (ranks.rank() == 1) CHECK_THROWS_WITH(model.materialize(thrower), "no values");
      CHECK_SAYS(error_of([&] { model.materialize(ts::from_tensors); }), "'u.0'");
      CHECK_SAYS(error_of([&] { (void)model.forward(unit); }), "materialize() has not been called");
      CHECK_SAYS(error_of([&] { model.materialize(ts::from_rank(2)); }), "from_rank(2)");
    }
    model.materialize([](const ts::TensorInfo&, std::uint64_t i) { return float(i); });
    {
      const auto lease = model.forward(unit);
      CHECK(under_test::read(w.data(), w.size())[299] == 299);
    }
    CHECK_SAYS(error_of([&] { model.materialize(ts::from_tensors); }), "twice");
    { auto lease = model.backward(unit); }
    CHECK(model.step().get().step == 1);
  });
}

TEST_CASE("misuse: a unit that would never reshard under a strategy that shards parameters") {
  std::vector<float> w(9);
  Model model = make();
  ts::UnitOptions options{.override_reshard = true, .reshard = ts::Reshard::never};
  CHECK_SAYS(error_of([&] { (void)model.add_unit("u", options, w); }), "'u'");
}

TEST_CASE("more open leases than the plan has room for: units, bytes and remedy are named") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(5), {.prefetch_depth = 0});
    const auto open_all = [&] {
      const auto a = toy.model.forward(toy.unit(0));
      const auto b = toy.model.forward(toy.unit(1));
      const auto c = toy.model.forward(toy.unit(2));
      const auto d = toy.model.forward(toy.unit(3));
      const auto e = toy.model.forward(toy.unit(4));
    };
    const std::string message = error_of(open_all);
    CHECK_SAYS(message, "1024 bytes");
    CHECK_SAYS(message, "beside the open leases of '0', '1'");
    const std::string refused = message.substr(0, message.find(" bytes)"));
    CHECK_FALSE(contains(message.substr(refused.size()), refused.substr(refused.find('\''), 3)));
    CHECK_SAYS(message, "Options::spare_slot_bytes");
    toy.model.reset();  // the leases were left by an exception
    toy.whole_step();
    toy.check();

    Toy<ts::Zero3<>> roomy(ranks, blocks(5), {.prefetch_depth = 0, .spare_slot_bytes = 8192});
    const auto a = roomy.model.forward(roomy.unit(0));
    const auto b = roomy.model.forward(roomy.unit(1));
    const auto c = roomy.model.forward(roomy.unit(2));
    const auto d = roomy.model.forward(roomy.unit(3));
    const auto e = roomy.model.forward(roomy.unit(4));
    for (int u = 0; u < 5; ++u) roomy.check_weights(u);
  });
}

TEST_CASE("leases: moved from, closed early and closed twice; tensors end with the Shard") {
  std::span<float> w(static_cast<float*>(nullptr), 100);
  {
    Model model = Model(ts::Mesh<under_test::Backend>::single());
    const ts::Unit unit = model.add_unit("u", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    auto lease = model.forward(unit);
    auto moved = std::move(lease);
    lease.close();
    CHECK(w.data() != nullptr);
    moved.close();
    CHECK(w.data() == nullptr);
    moved.close();
    auto nested = model.forward(unit);
    auto second = model.forward(unit);
    nested.close();
    CHECK(w.data() != nullptr);  // as long as one lease is open
    second.close();
    CHECK(w.data() == nullptr);
  }
  CHECK(w.data() == nullptr);
}
