// What each precision keeps, on the device: the bits of the host after the same steps.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;

namespace {

using ts::bf16;
using Reduced = ts::WithReduced<ts::Bf16, bf16>;

/// gradient = weight / 2 + a slope of few bits, in the buffer's type.
template <class E>
struct Gradient {
  const E* weights;
  E* gradients;
  bool accumulate;
  int rank;
  TESSERA_HD static float value_of(float x) { return x; }
  TESSERA_HD static float value_of(bf16 x) { return ts::to_float(x); }
  TESSERA_HD static void put(float& to, float x) { to = x; }
  TESSERA_HD static void put(bf16& to, float x) { to = ts::to_bf16(x); }
  TESSERA_HD void operator()(std::uint64_t i) const {
    const int slope = static_cast<int>((i * 7 + static_cast<std::uint64_t>(rank) * 3) % 16) - 8;
    const float value = value_of(weights[i]) * 0.5f + static_cast<float>(slope) * 0.125f;
    put(gradients[i], accumulate ? value_of(gradients[i]) + value : value);
  }
};

void launch(ts::HostRuntime*, std::uint64_t n, auto gradient) {
  for (std::uint64_t i = 0; i < n; ++i) gradient(i);
}
void launch(ts::CudaRuntime*, std::uint64_t n, auto gradient) {
  ts::detail::launch_for_each(cudaStreamPerThread, n, gradient);
}

struct Digests {
  std::uint64_t parameters = 0;
  std::uint64_t moments = 0;
  std::vector<double> norms;
};

/// Tensors of odd shapes, over cells, blocks and pieces; f32 ones beside them.
template <class Weight, class Strategy, class Precision, class Backend, class Optimizer>
Digests train(const typename Backend::Communicator& ranks, const Optimizer& optimizer) {
  constexpr std::array<std::int64_t, 5> kSizes = {1, 67, 4099, 12287, 40001};
  using Runtime = typename Backend::Runtime;
  std::array<Weight*, 5> weights{};
  std::array<float*, 2> wide{};
  ts::Options options;
  options.clip_norm = 5.0f;
  options.rounding_seed = 11;
  ts::Shard<Strategy, ts::OnDevice, Precision, Backend, Optimizer> model(ts::Mesh<Backend>(ranks),
                                                                         optimizer, options);
  std::vector<ts::Unit> units;
  units.push_back(model.add_unit("a", ts::tensor(weights[0], {kSizes[0]}),
                                 ts::tensor(wide[0], {129}), ts::tensor(weights[1], {kSizes[1]}),
                                 ts::tensor(weights[2], {kSizes[2]})));
  units.push_back(model.add_unit("b", ts::no_decay(ts::tensor(weights[3], {kSizes[3]}))));
  units.push_back(
      model.add_unit("c", ts::tensor(weights[4], {kSizes[4]}), ts::tensor(wide[1], {4097})));
  model.materialize([](const ts::TensorInfo& info, std::uint64_t i) {
    return static_cast<float>((i * 5 + info.id * 3) % 1000) / 512 - 1;
  });
  Digests result;
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      for (const ts::Unit unit : units) auto lease = model.forward(unit);
      for (std::size_t u = units.size(); u-- > 0;) {
        auto lease = model.backward(units[u]);
        const auto write = [&](auto*& tensor) {
          const auto g = lease.gradient(tensor);
          using E = std::remove_pointer_t<std::remove_reference_t<decltype(tensor)>>;
          launch(static_cast<Runtime*>(nullptr), g.size,
                 Gradient<E>{tensor, g.data, g.accumulate, ranks.rank()});
        };
        if (u == 0) {
          for (int t : {0, 1, 2}) write(weights[static_cast<std::size_t>(t)]);
          write(wide[0]);
        }
        if (u == 1) write(weights[3]);
        if (u == 2) {
          write(weights[4]);
          write(wide[1]);
        }
        lease.close();
      }
    }
    result.norms.push_back(model.step().get().norm);
  }
  result.parameters = model.parameters_digest();
  result.moments = model.moments_digest();
  return result;
}

template <class Weight, class Precision, class Strategy = ts::Zero3<>, class Optimizer = ts::AdamW>
void check(int world) {
  CAPTURE(world);
  const Optimizer optimizer{.learning_rate = 0.01f, .weight_decay = 0.1f};
  Digests host, device;
  ts::run_ranks(world, [&](const ts::InProcess& ranks) {
    const Digests mine = train<Weight, Strategy, Precision, ts::Host>(ranks, optimizer);
    if (ranks.rank() == 0) host = mine;
  });
  ts::run_cuda_ranks(world, [&](const ts::CudaInProcess& ranks) {
    const Digests mine = train<Weight, Strategy, Precision, ts::Cuda>(ranks, optimizer);
    if (ranks.rank() == 0) device = mine;
  });
  CHECK(host.norms == device.norms);
  CHECK(host.parameters == device.parameters);
  CHECK(host.moments == device.moments);
}

}  // namespace

TEST_CASE("reduced gradients in bf16: bits of the host") {
  for (int world : {1, 2, 3}) check<bf16, Reduced>(world);
  check<bf16, Reduced, ts::Replicate>(2);
}

TEST_CASE("split masters: bits of the host") {
  for (int world : {1, 3}) {
    check<bf16, ts::SplitMaster<>>(world);
    check<bf16, ts::SplitMaster<Reduced>, ts::Zero1>(world);
  }
}

TEST_CASE("stochastic rounding: bits of the host") {
  for (int world : {1, 3}) {
    check<bf16, ts::PureBf16<>>(world);
    check<bf16, ts::WithMoments<ts::PureBf16<>, bf16>>(world);
    check<bf16, ts::WithMoments<ts::SplitMaster<Reduced>, bf16>, ts::Replicate>(world);
    check<float, ts::WithMoments<ts::Fp32, bf16>>(world);
  }
  check<bf16, ts::WithMoments<ts::PureBf16<>, bf16>, ts::Zero3<>, ts::Lion>(2);
  check<bf16, ts::WithMoments<ts::PureBf16<>, bf16>, ts::Zero3<>, ts::Sgd>(2);
}

TEST_CASE("a captured step rounds anew at each replay, and writes gradients in place") {
  using Pure = ts::WithMoments<ts::PureBf16<>, bf16>;
  using Model = ts::Shard<ts::Zero3<>, ts::OnDevice, Pure, ts::Cuda>;
  const auto digests = [](bool captures) {
    bf16* weights = nullptr;
    Model model(ts::Mesh<ts::Cuda>::single(), ts::AdamW{.learning_rate = 1e-3f});
    const ts::Unit unit = model.add_unit("u", ts::tensor(weights, {5001}));
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    const auto step = [&] {
      { auto lease = model.forward(unit); }
      auto lease = model.backward(unit);
      const auto g = lease.gradient(weights);
      launch(static_cast<ts::CudaRuntime*>(nullptr), g.size,
             Gradient<bf16>{weights, g.data, g.accumulate, 0});
      lease.close();
      return model.step();
    };
    (void)step().get();
    if (captures) {
      ts::StepGraph graph(model, [&] { (void)step(); });
      for (int i = 0; i < 4; ++i) (void)graph.replay().get();
    } else {
      for (int i = 0; i < 4; ++i) (void)step().get();
    }
    return std::pair{model.parameters_digest(), model.moments_digest()};
  };
  CHECK(digests(true) == digests(false));
}
