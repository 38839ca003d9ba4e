// How precisions keep reduced gradients, masters and moments: bytes, roundings, access.
#include <cmath>

#include "support.hpp"

using namespace engine_test;

namespace {

using Half = ts::bf16;
using Reduced = ts::WithReduced<ts::Bf16, Half>;
using Split = ts::SplitMaster<Reduced>;
using Pure = ts::WithMoments<ts::PureBf16<>, Half>;

/// Bytes of state a parameter at one rank: all of the plan but its slots and scalars.
template <class Precision>
double state_bytes(ts::Options options = {}) {
  constexpr std::size_t kElements = std::size_t{1} << 20;
  std::span<Half> w(static_cast<Half*>(nullptr), kElements);
  ShardOf<ts::Zero3<>, Precision, ts::AdamW> model{
      ts::Mesh<under_test::Backend>(under_test::Ranks()), {}, std::move(options)};
  (void)model.add_unit("u", w);
  const ts::Plan plan = model.plan();
  std::uint64_t bytes = 0;
  for (const ts::PlanLine& each : plan.memory) bytes += each.state ? each.bytes : 0;
  return static_cast<double>(bytes) / static_cast<double>(kElements);
}

template <class Precision, class Optimizer = ts::Sgd>
struct OneTensor {
  using Model = ShardOf<ts::Zero3<>, Precision, Optimizer>;
  explicit OneTensor(under_test::Ranks ranks, std::size_t n, ts::Options options = {},
                     const Optimizer& optimizer = {})
      : w(static_cast<Half*>(nullptr), n),
        model(ts::Mesh<under_test::Backend>(ranks, {.poison = true}), optimizer,
              std::move(options)) {
    unit = model.add_unit("u", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
  }
  /// A backward lease in which every element's gradient is `value`, added where that is asked.
  void backward(float value) {
    auto lease = model.backward(unit);
    const auto gradient = lease.gradient(w);
    accumulated = gradient.accumulate;
    for (Half& g : gradient.span()) {
      g = ts::to_bf16(gradient.accumulate ? ts::to_float(g) + value : value);
    }
    lease.close();
  }

  std::span<Half> w;
  bool accumulated = false;
  ts::Unit unit;
  Model model;
};

}  // namespace

TEST_CASE("bytes of state a parameter at one rank") {
  CHECK(state_bytes<ts::Bf16>() == 18);
  CHECK(state_bytes<Reduced>() == 16);
  CHECK(state_bytes<ts::SplitMaster<>>() == 16);
  CHECK(state_bytes<Split>() == 14);
  CHECK(state_bytes<ts::WithMoments<Split, Half>>() == 10);
  CHECK(state_bytes<ts::PureBf16<>>() == 12);
  CHECK(state_bytes<Pure>() == 8);
}

TEST_CASE("sums over ranks are fp32 in rank order and rounded to bf16 once") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(3, [](under_test::Ranks ranks) {
      std::span<Half> w(static_cast<Half*>(nullptr), 1000);
      std::span<float> f(static_cast<float*>(nullptr), 70);
      ShardOf<Strategy, Reduced> model(ts::Mesh<under_test::Backend>(ranks, {.poison = true}), {},
                                       {.gradient_divisor = 1});
      const ts::Unit unit = model.add_unit("u", w, f);
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      // 256 + 0.75 + 0.75: in bf16 each of the small ones would be lost.
      const float mine = ranks.rank() == 0 ? 256.0f : 0.75f;
      for (int micro = 0; micro < 2; ++micro) {
        { const auto lease = model.forward(unit); }
        auto lease = model.backward(unit);
        const auto gradient = lease.gradient(w);
        CHECK_FALSE(gradient.accumulate);
        for (Half& g : gradient.span()) g = ts::to_bf16(mine);
        std::fill_n(lease.gradient(f).data, 70, mine);
      }
      const float once = ts::to_float(ts::to_bf16(257.5f));
      CHECK(once == 258);
      CHECK(differences(model.full(ts::State::gradient(), w),
                        std::vector<float>(1000, ts::to_float(ts::to_bf16(once + 257.5f)))) == 0);
      CHECK(differences(model.full(ts::State::gradient(), f), std::vector<float>(70, 515)) == 0);
      CHECK(model.local(ts::State::gradient(), f).values.size() <= 70);
      CHECK_SAYS(error_of([&] { (void)model.local(ts::State::gradient(), w); }),
                 "the reduced gradient of 'u.0' is bf16: use full() and set_full()");
      model.set_full(ts::State::gradient(), w, std::vector<float>(1000, 0.5f));
      CHECK(differences(model.full(ts::State::gradient(), w), std::vector<float>(1000, 0.5f)) == 0);
      CHECK_FALSE(model.step().get().skipped);
      CHECK(model.full(ts::State::master(), w)[999] < 1);
    });
  });
}

TEST_CASE("at one rank the gradient buffer is the reduced gradient: no slots, later ones add") {
  OneTensor<Reduced> one{under_test::Ranks(), 1000};
  const ts::Plan plan = one.model.plan();
  CHECK(line(plan, "slots") == 0);
  CHECK(line(plan, "full gradients") == 0);
  CHECK(line(plan, "reduced gradients") == 1024 * 2);
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 3; ++micro) {
      one.backward(static_cast<float>(1 + micro));
      CHECK(one.accumulated == (micro > 0));
    }
    CHECK(differences(one.model.full(ts::State::gradient(), one.w), std::vector<float>(1000, 6)) ==
          0);
    { const auto untouched = one.model.backward(one.unit); }  // zero beyond what is there
    const ts::StepReport report = one.model.step().get();
    CHECK(report.norm == std::sqrt(36.0 * 1000));
    CHECK(report.peak_bytes == plan.total_bytes());
  }
  { const auto untouched = one.model.backward(one.unit); }
  CHECK(one.model.step().get().norm == 0);
}

TEST_CASE("not where something must be done to it: a divisor, another type, a collective") {
  const auto slots = []<class Precision>(ts::Options options) {
    OneTensor<Precision> one{under_test::Ranks(), 1000, std::move(options)};
    return line(one.model.plan(), "slots");
  };
  CHECK(slots.operator()<Reduced>({}) == 0);
  CHECK(slots.operator()<Reduced>({.gradient_divisor = 2}) > 0);
  CHECK(slots.operator()<Reduced>({.collectives_at_one_rank = true}) > 0);
  CHECK(slots.operator()<ts::Bf16>({}) > 0);
}

TEST_CASE("accumulated unreduced, the buffer in place is the same one") {
  OneTensor<Reduced> one{under_test::Ranks(), 100, {.accumulation = ts::Accumulation::reduce_once}};
  CHECK(line(one.model.plan(), "full gradients") == 0);
  {
    const auto scope = one.model.accumulate();
    one.backward(1);
    one.backward(2);
    CHECK(one.accumulated);
  }
  CHECK(ts::to_float(one.model.pending_gradient(one.w)[99]) == 3);
  CHECK_SAYS(error_of([&] { (void)one.model.step(); }), "not reduced");
  one.model.reduce_gradients();
  CHECK(one.model.full(ts::State::gradient(), one.w)[99] == 3);
  one.backward(4);
  CHECK(one.model.full(ts::State::gradient(), one.w)[99] == 7);
  CHECK_FALSE(one.model.step().get().skipped);
  one.backward(1);
  CHECK_FALSE(one.accumulated);
}

TEST_CASE("a split master is the fp32 master, bit for bit, whatever the strategy") {
  const auto run = []<class Strategy, class Precision>(int world) {
    std::vector<float> masters;
    std::uint64_t digest = 0;
    under_test::run_ranks(world, [&](under_test::Ranks ranks) {
      std::span<Half> w(static_cast<Half*>(nullptr), 777);
      std::span<float> f(static_cast<float*>(nullptr), 70);
      ShardOf<Strategy, Precision, ts::AdamW> model(
          ts::Mesh<under_test::Backend>(ranks, {.poison = true}), {.learning_rate = 1e-3f});
      const ts::Unit unit = model.add_unit("u", w, f);
      model.materialize([](const ts::TensorInfo&, std::uint64_t i) {
        return static_cast<float>(i) * 0x1.234p-9f - 1;
      });
      for (int step = 0; step < 5; ++step) {
        { const auto lease = model.forward(unit); }
        auto lease = model.backward(unit);
        // Of few bits, so that the sums' order is all the same.
        std::uint64_t i = 0;
        for (Half& g : lease.gradient(w).span()) g = ts::to_bf16(slope(0, step, 0, i++));
        std::fill_n(lease.gradient(f).data, 70, 0.5f);
        lease.close();
        CHECK_FALSE(model.step().get().skipped);
      }
      const std::vector<float> master = model.full(ts::State::master(), w);
      const std::uint64_t mine = model.parameters_digest() ^ model.moments_digest();
      const std::vector<float> parameters = model.full(ts::State::parameter(), w);
      std::size_t far = 0;
      for (std::size_t i = 0; i < master.size(); ++i) {
        far += std::fabs(master[i] - parameters[i]) <= std::fabs(master[i]) / 256 ? 0 : 1;
      }
      CHECK(far == 0);
      if (ranks.rank() != 0) return;
      masters = master;
      digest = mine;
    });
    return std::pair{masters, digest};
  };
  const auto wanted = run.operator()<ts::Zero3<>, Reduced>(1);
  const auto split = run.operator()<ts::Zero3<>, Split>(1);
  CHECK(differences(split.first, wanted.first) == 0);
  for (int world : {1, 2, 4}) {
    for_each_strategy(
        [&]<class Strategy>() { CHECK(run.operator()<Strategy, Split>(world) == split); });
  }
}

TEST_CASE("a split master is set and read in full; local() says that it is in halves") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(3, [](under_test::Ranks ranks) {
      std::vector<Half> held(1000);
      for (std::size_t i = 0; i < held.size(); ++i)
        held[i].bits = static_cast<std::uint16_t>(i * 31);
      std::span<Half> w(held);
      ShardOf<Strategy, Split> model{ts::Mesh<under_test::Backend>(ranks, {.poison = true})};
      (void)model.add_unit("u", w);
      model.materialize(ts::from_tensors);
      std::vector<float> values(1000);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = ts::to_float(held[i]);
      CHECK(differences(model.full(ts::State::master(), w), values) == 0);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = std::ldexp(1 + static_cast<float>(i) / 4096, static_cast<int>(i % 30) - 15);
      }
      for (const ts::State state : {ts::State::master(), ts::State::parameter()}) {
        model.set_full(state, w, values);
        CHECK(differences(model.full(ts::State::master(), w), values) == 0);
        values[7] = -values[7] / 3;
      }
      CHECK_SAYS(error_of([&] { (void)model.local(ts::State::master(), w); }),
                 "the master of 'u.0' is in two halves: use full() and set_full()");
      CHECK_SAYS(error_of([&] { (void)model.local(ts::State::parameter(), w); }),
                 "the parameter 'u.0' is bf16: use full() and set_full()");
    });
  });
}

TEST_CASE("in_place: first values computed where the state is are the same as the caller's") {
  const auto check = [](auto precision) {
    using Precision = decltype(precision);
    constexpr std::size_t kElements = 301;
    struct Value {
      std::uint32_t tensor;
      float operator()(std::uint64_t i) const { return ts::random_normal(5, tensor, i); }
    };
    const auto with = [&](auto&& values) {
      std::vector<std::vector<float>> full(4);
      under_test::run_ranks(3, [&](under_test::Ranks ranks) {
        std::span<Half> a(static_cast<Half*>(nullptr), kElements);
        std::span<float> b(static_cast<float*>(nullptr), 7);
        ShardOf<ts::Zero3<>, Precision, ts::AdamW> model{ts::Mesh<under_test::Backend>(ranks)};
        (void)model.add_unit("u", a, b);
        model.materialize(values);
        std::vector<std::vector<float>> all{
            model.full(ts::State::parameter(), a), model.full(ts::State::master(), a),
            model.full(ts::State::parameter(), b), model.full(ts::State::master(), b)};
        if (model.rank() == 0) full = std::move(all);
      });
      return full;
    };
    const auto called = with([](const ts::TensorInfo& info, std::uint64_t i) {
      return ts::random_normal(5, info.id, i);
    });
    const auto in_place =
        with(ts::in_place([](const ts::TensorInfo& info) { return Value{info.id}; }));
    CHECK(called == in_place);
    CHECK(called[1].size() == kElements);
  };
  check(ts::Bf16{});
  check(Split{});
  check(Pure{});
}
