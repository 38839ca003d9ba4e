// Many ranks in one process.
#include <cmath>

#include "support.hpp"

using namespace engine_test;

namespace {

const std::vector<UnitSpec> kUnit = {{"a", {17 * 257, 17, 64 * 312, 64}},
                                     {"b", {64 * 64, 512 * 64, 256, 64 * 297}}};

}  // namespace

TEST_CASE("P012, P013: a unit of odd shapes over 128 ranks: gather and reduction are exact") {
  under_test::run_ranks(128, [](under_test::Ranks ranks) {
    std::vector<std::span<float>> w;
    for (std::int64_t n : {17 * 257, 17, 64 * 312, 64, 64 * 64, 512 * 64, 256, 64 * 297}) {
      w.emplace_back(static_cast<float*>(nullptr), static_cast<std::size_t>(n));
    }
    ShardOf<ts::Zero3<>> model(ts::Mesh<under_test::Backend>(ranks), {}, {.gradient_divisor = 1});
    const ts::Unit unit = model.add_unit("u", w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
    model.materialize([](const ts::TensorInfo& info, std::uint64_t index) {
      return first_value(info.id, index);
    });
    {
      const auto lease = model.forward(unit);
      std::size_t wrong = 0;
      for (std::uint32_t t = 0; t < w.size(); ++t) {
        for (std::uint64_t i = 0; i < w[t].size(); ++i) {
          wrong += w[t][i] == first_value(t, i) ? 0 : 1;
        }
      }
      CHECK(wrong == 0);
    }
    {
      auto lease = model.backward(unit);
      for (std::span<float>& tensor : w) {
        const auto gradient = lease.gradient(tensor);
        std::fill_n(gradient.data, gradient.size, static_cast<float>(ranks.rank() % 8));
      }
    }
    model.reduce_gradients();
    // The sum over ranks of r mod 8 is 16 * 28.
    std::size_t wrong = 0;
    std::uint64_t held = 0;
    for (std::span<float>& tensor : w) {
      const ts::LocalState mine = model.local(ts::State::gradient(), tensor);
      held += mine.values.size();
      for (float value : mine.values) wrong += value == 16 * 28 ? 0 : 1;
    }
    CHECK(wrong == 0);
    // 1260 granules of 64 in 128 pieces of 10 granules: the last two ranks hold only padding.
    CHECK((held == 0) == (ranks.rank() >= 126));
  });
}

TEST_CASE("P013, B028: bf16 gradients over 64 ranks are summed in fp32") {
  under_test::run_ranks(64, [](under_test::Ranks ranks) {
    std::span<ts::bf16> w(static_cast<ts::bf16*>(nullptr), 1000);
    ShardOf<ts::Zero3<>, ts::Bf16> model{ts::Mesh<under_test::Backend>(ranks)};
    const ts::Unit unit = model.add_unit("u", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
    const auto contribution = [](int rank, std::uint64_t i) {
      return ts::to_bf16(1e-3f * static_cast<float>((rank * 37 + static_cast<int>(i)) % 64 + 1));
    };
    {
      auto lease = model.backward(unit);
      const auto gradient = lease.gradient(w);
      for (std::uint64_t i = 0; i < gradient.size; ++i) {
        gradient.data[i] = contribution(ranks.rank(), i);
      }
    }
    model.reduce_gradients();
    const std::vector<float> reduced = model.full(ts::State::gradient(), w);
    double worst_fp32 = 0;
    double worst_bf16 = 0;
    for (std::uint64_t i = 0; i < reduced.size(); ++i) {
      double exact = 0;
      ts::bf16 running = ts::to_bf16(0);
      for (int r = 0; r < 64; ++r) {
        exact += ts::to_float(contribution(r, i));
        running = ts::to_bf16(ts::to_float(running) + ts::to_float(contribution(r, i)));
      }
      exact /= 64;
      worst_fp32 = std::max(worst_fp32, std::fabs(reduced[i] - exact) / exact);
      worst_bf16 = std::max(worst_bf16, std::fabs(ts::to_float(running) / 64 - exact) / exact);
    }
    CHECK(worst_fp32 < 64 * 6e-8);
    if (ranks.rank() == 0) {
      MESSAGE("relative error of 64 contributions summed in fp32: ", worst_fp32,
              ", in bf16: ", worst_bf16);
      CHECK(worst_bf16 > 100 * worst_fp32);
    }
  });
}

TEST_CASE("P012: whole steps at 32 ranks") {
  under_test::run_ranks(32, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, kUnit, {.gradient_divisor = 1});
    toy.whole_step();
    toy.check();
  });
}
