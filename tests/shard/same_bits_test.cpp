// The same seed and ranks give the same bits, whatever the strategy, prefetch, buckets, schedule
// and timing: within an accumulation mode by their digests, across the two within a tolerance.

#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "support/backend.hpp"

namespace {

namespace ts = tessera;

constexpr int kRanks = 4;
constexpr int kSteps = 3;
constexpr std::uint64_t kEverything = 1u << 30;

struct Setting {
  ts::Schedule schedule = ts::Schedule::overlapped;
  int prefetch = 1;
  std::uint64_t bucket = 0;
  ts::Accumulation accumulation = ts::Accumulation::reduce_each;
  int accumulate = 1;
  float clip = 0;
  int jitter_us = 0;
  int replicate = 1;
};

struct Result {
  std::uint64_t parameters = 0;
  std::uint64_t moments = 0;
  bool clipped = false;
  std::vector<float> weights;
  friend bool operator==(const Result& a, const Result& b) {
    return a.parameters == b.parameters && a.moments == b.moments;
  }
};

float noise(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return 2 * ts::random_uniform(seed, stream, index) - 1;
}

float widened(float value) { return value; }
float widened(ts::bf16 value) { return ts::to_float(value); }
void assign(float& to, float value) { to = value; }
void assign(ts::bf16& to, float value) { to = ts::to_bf16(value); }

/// A matrix and an fp32 norm a unit, as under Bf16 a transformer has them.
template <class E>
struct Layer {
  E* matrix = nullptr;
  std::span<float> norm;
  ts::Unit unit;
};

template <class E>
void add_gradient(const ts::Gradient<E>& gradient, const E* weights, std::uint64_t stream) {
  for (std::uint64_t i = 0; i < gradient.size; ++i) {
    // Wrong or stale weights show in it.
    const float value = noise(2, stream, i) + 0.25f * widened(weights[i]);
    assign(gradient.data[i], gradient.accumulate ? widened(gradient.data[i]) + value : value);
  }
}

template <class E, class Model>
bool run_steps(Model& model, std::vector<Layer<E>>& layers, const Setting& setting, int rank) {
  bool clipped = true;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < setting.accumulate; ++micro) {
      for (Layer<E>& layer : layers) {
        const auto lease = model.forward(layer.unit);
        CHECK(layer.matrix != nullptr);
      }
      const auto backward = [&] {
        for (std::size_t l = layers.size(); l-- > 0;) {
          const auto stream =
              static_cast<std::uint64_t>(((step * 10 + micro) * 10 + rank) * 10) + l;
          auto lease = model.backward(layers[l].unit);
          add_gradient(lease.gradient(layers[l].matrix), layers[l].matrix, 2 * stream);
          add_gradient(lease.gradient(layers[l].norm), layers[l].norm.data(), 2 * stream + 1);
        }
      };
      const bool once = setting.accumulation == ts::Accumulation::reduce_once;
      if (once && micro + 1 < setting.accumulate) {
        const auto scope = model.accumulate();
        backward();
      } else {
        backward();
      }
    }
    const ts::StepReport report = model.step().get();
    clipped = clipped && report.clipped_norm < report.norm;
  }
  return clipped;
}

template <class Strategy, class Precision, class E>
Result run(const Setting& setting) {
  static constexpr std::int64_t kRows[] = {37, 1, 64, 3};
  Result result;
  std::vector<Result> ranks(kRanks);
  under_test::run_ranks(kRanks, [&](const under_test::Ranks& communicator) {
    ts::Options options;
    options.schedule = setting.schedule;
    options.prefetch_depth = setting.prefetch;
    options.bucket_bytes = setting.bucket;
    options.accumulation = setting.accumulation;
    options.clip_norm = setting.clip;
    options.gathered_bytes = 8000;  // ByBudget: some units stay
    const under_test::RuntimeOptions host{.poison = true,
                                          .jitter = std::chrono::microseconds(setting.jitter_us)};
    using Model = ts::Shard<Strategy, ts::OnDevice, Precision>;
    std::vector<Layer<E>> layers(std::size(kRows));
    const ts::MeshShape shape{.replicate = setting.replicate, .shard = kRanks / setting.replicate};
    Model model(ts::Mesh<under_test::Backend>(communicator, shape, host),
                ts::AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f}, options);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      layers[l].norm = std::span<float>(static_cast<float*>(nullptr), 33);
      layers[l].unit =
          model.add_unit("layer" + std::to_string(l), ts::tensor(layers[l].matrix, {kRows[l], 33}),
                         ts::no_decay(layers[l].norm));
    }
    model.materialize(
        [](const ts::TensorInfo& info, std::uint64_t i) { return noise(1, info.id, i); });
    Result& mine = ranks[static_cast<std::size_t>(communicator.rank())];
    mine.clipped = run_steps(model, layers, setting, communicator.rank());
    mine.parameters = model.parameters_digest();
    mine.moments = model.moments_digest();
    for (const ts::TensorInfo& info : model.tensors()) {
      const std::vector<float> values = model.full(ts::State::master(), info);
      mine.weights.insert(mine.weights.end(), values.begin(), values.end());
    }
  });
  for (const Result& rank : ranks) CHECK(rank == ranks[0]);
  return ranks[0];
}

using Runner = Result (*)(const Setting&);
struct NamedRunner {
  const char* name;
  Runner run;
};

template <class Precision, class E>
std::vector<NamedRunner> strategies() {
  return {{"Replicate", run<ts::Replicate, Precision, E>},
          {"Zero1", run<ts::Zero1, Precision, E>},
          {"Zero2", run<ts::Zero2, Precision, E>},
          {"Zero3", run<ts::Zero3<>, Precision, E>},
          {"Zero3 after_backward", run<ts::Zero3<ts::Reshard::after_backward>, Precision, E>},
          {"ByBudget", run<ts::ByBudget, Precision, E>}};
}

/// One tensor, one unit, everything (full buffers of the largest).
std::vector<std::uint64_t> buckets(std::size_t width) {
  return {0, 33 * sizeof(float), 64 * 33 * width + 64 * sizeof(float), kEverything};
}

void check_all(const std::vector<NamedRunner>& runners, const Setting& base, std::size_t width) {
  const Result wanted = runners[0].run(base);
  CHECK(wanted.clipped == (base.clip > 0));
  for (const NamedRunner& runner : runners) {
    for (const ts::Schedule schedule : {ts::Schedule::overlapped, ts::Schedule::sequential}) {
      for (int prefetch = 0; prefetch <= 3; ++prefetch) {
        for (const std::uint64_t bucket : buckets(width)) {
          Setting setting = base;
          setting.schedule = schedule;
          setting.prefetch = prefetch;
          setting.bucket = bucket;
          // Delays cost time: every third setting has them.
          setting.jitter_us = (prefetch + static_cast<int>(bucket % 7)) % 3 == 0 ? 50 : 0;
          CAPTURE(runner.name);
          CAPTURE(static_cast<int>(schedule));
          CAPTURE(prefetch);
          CAPTURE(bucket);
          CHECK(runner.run(setting) == wanted);
        }
      }
    }
  }
}

TEST_CASE("same bits: fp32, a clip that binds") {
  check_all(strategies<ts::Fp32, float>(), {.clip = 0.5f}, sizeof(float));
}

TEST_CASE("same bits: bf16, a clip that binds") {
  check_all(strategies<ts::Bf16, ts::bf16>(), {.clip = 0.5f}, sizeof(ts::bf16));
}

TEST_CASE("same bits: three micro-steps, reduced each or once") {
  for (const auto accumulation : {ts::Accumulation::reduce_each, ts::Accumulation::reduce_once}) {
    const Setting base{.accumulation = accumulation, .accumulate = 3, .clip = 0.5f};
    check_all(strategies<ts::Fp32, float>(), base, sizeof(float));
  }
}

TEST_CASE("same bits: two replicas of two ranks, and four of one") {
  check_all(strategies<ts::Fp32, float>(), {.clip = 0.5f, .replicate = 2}, sizeof(float));
  check_all(strategies<ts::Bf16, ts::bf16>(), {.clip = 0.5f, .replicate = 2}, sizeof(ts::bf16));
  const Setting each{
      .accumulation = ts::Accumulation::reduce_each, .accumulate = 3, .clip = 0.5f, .replicate = 4};
  check_all(strategies<ts::Fp32, float>(), each, sizeof(float));
}

TEST_CASE("same bits: delays alone change nothing") {
  const auto run_zero3 = run<ts::Zero3<>, ts::Fp32, float>;
  CHECK(run_zero3({.jitter_us = 50}) == run_zero3({}));
}

// The modes add the same numbers in another order. A mean of n = 12 gradients of magnitude up to 2
// is off by at most n 2^-24 2 = 1.5e-6, and AdamW divides by its magnitude, which may be small: the
// update is bounded by the learning rate, so what is compared is the distance in learning rates.
TEST_CASE("the two accumulation modes agree within a thousandth of the learning rate") {
  const auto run_zero3 = run<ts::Zero3<>, ts::Fp32, float>;
  const Result each = run_zero3({.accumulate = 3});
  const Result once = run_zero3({.accumulation = ts::Accumulation::reduce_once, .accumulate = 3});
  REQUIRE(each.weights.size() == once.weights.size());
  float most = 0;
  for (std::size_t i = 0; i < each.weights.size(); ++i) {
    most = std::max(most, std::fabs(each.weights[i] - once.weights[i]));
  }
  CHECK(most <= 0.01f * 1e-3f);
}

template <class Strategy, class Precision, class E>
void check_that_a_bit_shows() {
  under_test::run_ranks(kRanks, [](const under_test::Ranks& communicator) {
    E* matrix = nullptr;
    std::vector<float> bias(5, 1.0f);
    ts::Shard<Strategy, ts::OnDevice, Precision> model{ts::Mesh<under_test::Backend>(communicator)};
    model.add_unit("only", ts::tensor(matrix, {7, 41}), bias);
    model.materialize(
        [](const ts::TensorInfo& info, std::uint64_t i) { return noise(1, info.id, i); });
    const std::uint64_t before = model.parameters_digest();
    const std::vector<float> values = model.full(ts::State::parameter(), matrix);
    for (const std::size_t i : {std::size_t{0}, values.size() / 2, values.size() - 1}) {
      // The lowest bit of an E.
      const std::uint32_t bit = sizeof(E) == 2 ? 1u << 16 : 1u;
      std::vector<float> changed = values;
      changed[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[i]) ^ bit);
      model.set_full(ts::State::parameter(), matrix, changed);
      CHECK(model.parameters_digest() != before);
    }
  });
}

TEST_CASE("one flipped bit of one parameter changes the digest") {
  check_that_a_bit_shows<ts::Zero3<>, ts::Fp32, float>();
  check_that_a_bit_shows<ts::Replicate, ts::Fp32, float>();
  check_that_a_bit_shows<ts::Zero3<>, ts::Bf16, ts::bf16>();
}

}  // namespace
