// Edits of the state by kernels, captures beside evaluation, and what a failed capture leaves.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;

namespace {

struct SetAll {
  float* values;
  float value;
  TESSERA_HD void operator()(std::uint64_t i) const { values[i] = value; }
};

template <class Strategy>
struct Net {
  using Model = ts::Shard<Strategy, ts::OnDevice, ts::Fp32, ts::Cuda, ts::Sgd>;

  Net(ts::CudaInProcess ranks, ts::Options options)
      : weights(3, nullptr),
        model(ts::Mesh<ts::Cuda>(ranks), ts::Sgd{.learning_rate = 1}, options) {
    for (std::size_t u = 0; u < weights.size(); ++u) {
      units.push_back(model.add_unit(std::to_string(u), ts::tensor(weights[u], {5000})));
    }
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
  }
  void forward() {
    for (ts::Unit unit : units) auto lease = model.forward(unit);
  }
  void backward(float value = 0.5f) {
    for (std::size_t u = units.size(); u-- > 0;) {
      auto lease = model.backward(units[u]);
      const auto gradient = lease.gradient(weights[u]);
      ts::detail::launch_for_each(cudaStreamPerThread, gradient.size, SetAll{gradient.data, value});
    }
  }
  ts::StepTicket<ts::Cuda> step() {
    forward();
    backward();
    return model.step();
  }
  /// What a lease sees.
  float seen(std::size_t u) {
    auto lease = model.forward(units[u]);
    float value = 0;
    ts::detail::check_cuda(
        cudaMemcpyAsync(&value, weights[u] + 4999, 4, cudaMemcpyDeviceToHost, cudaStreamPerThread),
        "a test's copy");
    ts::detail::check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "a test's copy");
    return value;
  }

  std::vector<float*> weights;
  Model model;
  std::vector<ts::Unit> units;
};

constexpr std::uint64_t kLate = 5'000'000;  // 5 ms

}  // namespace

TEST_CASE("a kernel that edits local weights or gradients late is waited for") {
  ts::run_cuda_ranks(2, [](ts::CudaInProcess ranks) {
    Net<ts::Zero3<>> net(ranks, {});
    (void)net.step().get();
    const auto mine = net.model.local(ts::State::parameter(), net.weights[1]);
    ts::detail::launch_delay(cudaStreamPerThread, kLate);
    ts::detail::launch_for_each(cudaStreamPerThread, mine.values.size(),
                                SetAll{mine.values.data(), 7.0f});
    CHECK(net.seen(1) == 7.0f);
  });
  ts::run_cuda_ranks(2, [](ts::CudaInProcess ranks) {
    Net<ts::Replicate> net(ranks, {});
    net.forward();
    net.backward();
    const auto mine = net.model.local(ts::State::gradient(), net.weights[0]);
    ts::detail::launch_delay(cudaStreamPerThread, kLate);
    ts::detail::launch_for_each(cudaStreamPerThread, mine.values.size(),
                                SetAll{mine.values.data(), 3.0f});
    (void)net.model.step().get();
    CHECK(net.seen(0) == 1.0f - 3.0f);
    CHECK(net.seen(1) == 1.0f - 0.5f);
  });
}

TEST_CASE("evaluation before a capture and between replays sees the parameters of the last step") {
  ts::Options options;
  options.collectives_at_one_rank = true;
  Net<ts::Zero2> net(ts::CudaInProcess(), options);
  for (int i = 0; i < 2; ++i) (void)net.step().get();
  const auto evaluate = [&] {
    auto scope = net.model.evaluate();
    for (std::size_t u = 0; u < 3; ++u) CHECK(net.seen(u) == net.seen(0));
    return net.seen(0);
  };
  CHECK(evaluate() == 0.0f);
  ts::StepGraph graph(net.model, [&] { (void)net.step(); });
  CHECK(evaluate() == 0.0f);
  for (int i = 0; i < 3; ++i) (void)graph.replay();
  CHECK(evaluate() == -1.5f);
  (void)graph.replay().get();
  CHECK(evaluate() == -2.0f);
}

TEST_CASE("a failed capture leaves the Shard as after its last step") {
  ts::Options options;
  options.collectives_at_one_rank = true;
  Net<ts::Zero3<>> net(ts::CudaInProcess(), options);
  const auto said = [&](auto&& step) {
    try {
      ts::StepGraph graph(net.model, step);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("captured");
  };
  CHECK(said([&] { (void)net.step(); }).find("after it has run once") != std::string::npos);
  for (int i = 0; i < 2; ++i) (void)net.step().get();
  CHECK(said([&] {
          net.forward();
          net.backward(8.0f);
        }).find("must call step()") != std::string::npos);
  CHECK(said([&] {
          net.forward();
          throw std::runtime_error("boom");
        }) == "boom");
  (void)net.step().get();
  CHECK(net.seen(0) == 1.0f - 3 * 0.5f);
  net.forward();
  net.backward();
  CHECK(said([&] { (void)net.step(); }).find("call step() first") != std::string::npos);
  (void)net.model.step().get();
  // seen() opened a lease that the steps do not have: an order that is to be captured is run once.
  CHECK(said([&] { (void)net.step(); }).find("in another order") != std::string::npos);
  (void)net.step().get();
  CHECK(said([&] { (void)net.step(); }) == "captured");
  CHECK(net.seen(0) == 1.0f - 5 * 0.5f);
}

TEST_CASE("a graph may end before the report of its last replay is read") {
  ts::Options options;
  options.collectives_at_one_rank = true;
  options.trace = true;
  Net<ts::Zero3<>> net(ts::CudaInProcess(), options);
  for (int i = 0; i < 2; ++i) (void)net.step().get();
  {
    ts::StepGraph graph(net.model, [&] { (void)net.step(); });
    (void)graph.replay();
  }
  (void)net.step().get();
  CHECK(net.seen(0) == 1.0f - 4 * 0.5f);
}
