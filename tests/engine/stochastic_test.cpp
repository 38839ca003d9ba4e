// Weights and moments that are rounded stochastically: unbiased, and the same bits everywhere.
#include <cmath>
#include <limits>

#include "support.hpp"

using namespace engine_test;

namespace {

using Half = ts::bf16;
using Pure = ts::WithMoments<ts::PureBf16<>, Half>;

struct Result {
  std::vector<float> weights;
  std::vector<float> wide;  ///< of the f32 tensor
  std::vector<float> moment;
  std::uint64_t digest = 0;
  friend bool operator==(const Result&, const Result&) = default;
};

/// `steps` updates under which every gradient is `gradient`; an infinite one before step `skipped`.
template <class Strategy, class Precision, class Optimizer>
Result run(int world, std::size_t elements, int steps, float gradient, const Optimizer& optimizer,
           const ts::Options& more = {}, int skipped = -1) {
  Result result;
  under_test::run_ranks(world, [&](under_test::Ranks ranks) {
    std::span<Half> other(static_cast<Half*>(nullptr), 100);
    std::span<Half> w(static_cast<Half*>(nullptr), elements);
    std::span<float> f(static_cast<float*>(nullptr), 100);
    ts::Options options = more;
    options.gradient_divisor = 1;
    ShardOf<Strategy, Precision, Optimizer> model(
        ts::Mesh<under_test::Backend>(ranks, {.poison = true}), optimizer, options);
    const ts::Unit unit = model.add_unit("u", other, f, w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    const auto step = [&](float value) {
      { const auto lease = model.forward(unit); }
      auto lease = model.backward(unit);
      const float mine = ranks.rank() == 0 ? value : 0.0f;
      for (Half& g : lease.gradient(w).span()) g = ts::to_bf16(mine);
      for (Half& g : lease.gradient(other).span()) g = ts::to_bf16(mine);
      std::fill_n(lease.gradient(f).data, f.size(), mine);
      lease.close();
      return model.step().get().skipped;
    };
    for (int s = 0; s < steps; ++s) {
      if (s == skipped) CHECK(step(std::numeric_limits<float>::infinity()));
      CHECK_FALSE(step(gradient));
    }
    Result mine{model.full(ts::State::parameter(), w), model.full(ts::State::parameter(), f),
                model.full(ts::State::moment(Optimizer::state_count - 1), w),
                model.parameters_digest() ^ model.moments_digest()};
    if (Precision::describe().master == ts::Master::none) {
      CHECK(model.full(ts::State::master(), w) == mine.weights);
    }
    CHECK(model.full(ts::State::master(), f) == mine.wide);
    if (ranks.rank() == 0) result = std::move(mine);
  });
  return result;
}

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

const ts::Sgd kSlow{.learning_rate = 1e-4f};

}  // namespace

TEST_CASE("10,000 updates of 1e-4 on weights of 1 move them by that on average") {
  constexpr double kSpacing = 1.0 / 128;
  const double p = 1e-4 / kSpacing;
  const double sigma = kSpacing * std::sqrt(p * (1 - p) * 10 / 1000);
  const Result at_one = run<ts::Zero3<>, ts::PureBf16<>>(1, 1000, 10, -1, kSlow);
  CHECK(std::fabs(mean(at_one.weights) - 1.001) < 3 * sigma);
  CHECK(std::count(at_one.weights.begin(), at_one.weights.end(), 1.0f) > 500);
  CHECK(at_one.wide == run<ts::Zero3<>, ts::Bf16>(1, 1, 10, -1, kSlow).wide);
  for (int world : {2, 3, 5}) {
    for_each_strategy([&]<class Strategy>() {
      CHECK(run<Strategy, ts::PureBf16<>>(world, 1000, 10, -1, kSlow) == at_one);
    });
  }
}

TEST_CASE("the seed changes the bits; a step that is skipped does not") {
  const Result plain = run<ts::Zero3<>, Pure>(2, 500, 6, -1, kSlow);
  CHECK(run<ts::Zero1, Pure>(2, 500, 6, -1, kSlow, {}, 3) == plain);
  CHECK(run<ts::Zero3<>, Pure>(2, 500, 6, -1, kSlow, {.rounding_seed = 1}).digest != plain.digest);
}

TEST_CASE("an average in bf16 does not stand still") {
  const ts::AdamW optimizer{.learning_rate = 0};
  const Result result = run<ts::Zero3<>, Pure>(1, 400, 600, 1, optimizer);
  const double exact = 1 - std::pow(0.999, 600);
  // To nearest it would stop where a thousandth of the rest is half the spacing: near 0.2.
  CHECK(std::fabs(mean(result.moment) - exact) < 0.01);
  const Result wide = run<ts::Zero2, ts::WithMoments<ts::Bf16, Half>>(1, 400, 600, 1, optimizer);
  CHECK(wide.wide == std::vector<float>(100, 1.0f));
}

TEST_CASE("every optimizer, group and frozen neighbour: the same bits at one rank and at three") {
  const ts::Options grouped{.bucket_bytes = 1000, .clip_norm = 1};
  const auto same = [&]<class Optimizer>(const Optimizer& optimizer) {
    const Result one = run<ts::Replicate, Pure>(1, 700, 5, 0.75f, optimizer, grouped);
    CHECK(run<ts::Zero3<>, Pure>(3, 700, 5, 0.75f, optimizer, grouped) == one);
    CHECK(run<ts::Replicate, Pure>(3, 700, 5, 0.75f, optimizer, grouped) == one);
  };
  same(ts::AdamW{.learning_rate = 1e-3f, .weight_decay = 0.1f});
  same(ts::Lion{.learning_rate = 1e-4f, .weight_decay = 0.1f});
  same(ts::Sgd{.learning_rate = 1e-3f, .momentum = 0.9f, .nesterov = true});
}

TEST_CASE("moments in bf16 are read and set in full; local() says so") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<Half> w(static_cast<Half*>(nullptr), 300);
    ShardOf<ts::Zero3<>, Pure> model{ts::Mesh<under_test::Backend>(ranks)};
    (void)model.add_unit("u", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    std::vector<float> values(300);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100);
    for (const ts::State state : {ts::State::moment(0), ts::State::master()}) {
      model.set_full(state, w, values);
      CHECK(model.full(state, w) == values);
      CHECK_SAYS(error_of([&] { (void)model.local(state, w); }),
                 "'u.0' is bf16: use full() and set_full()");
    }
  });
}
