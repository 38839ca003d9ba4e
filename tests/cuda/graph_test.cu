// A step as a CUDA graph: the bits of steps that are run as they are.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;

namespace {

/// gradient = weight / 2 + (index-dependent slope) * batch[0]
struct Gradient {
  const float* batch;
  const float* weights;
  float* gradients;
  bool accumulate;
  TESSERA_HD void operator()(std::uint64_t i) const {
    const float value = weights[i] * 0.5f +
                        static_cast<float>(static_cast<int>(i * 7 % 16) - 8) * 0.125f * batch[0];
    gradients[i] = accumulate ? gradients[i] + value : value;
  }
};

template <class Strategy, class Precision = ts::Fp32>
struct Net {
  using Model = ts::Shard<Strategy, ts::OnDevice, Precision, ts::Cuda>;

  Net(int units, ts::Options options, std::size_t size = 5000)
      : weights(static_cast<std::size_t>(units), nullptr),
        batch(std::vector<float>{1.0f}),
        model(ts::Mesh<ts::Cuda>::single(), ts::AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f},
              options),
        elements(size) {
    for (int u = 0; u < units; ++u) {
      handles.push_back(model.add_unit(
          "unit" + std::to_string(u),
          ts::tensor(weights[static_cast<std::size_t>(u)], {static_cast<std::int64_t>(size)})));
    }
    model.materialize([](const ts::TensorInfo& info, std::uint64_t i) {
      return static_cast<float>((i * 5 + info.id * 3) % 16) / 8 - 1;
    });
  }

  /// One step; the report is not asked for.
  std::optional<ts::StepTicket<ts::Cuda>> step() {
    for (std::size_t u = 0; u < handles.size(); ++u) auto lease = model.forward(handles[u]);
    for (std::size_t u = handles.size(); u-- > 0;) {
      auto lease = model.backward(handles[u]);
      const auto g = lease.gradient(weights[u]);
      ts::detail::launch_for_each(cudaStreamPerThread, g.size,
                                  Gradient{batch.data(), weights[u], g.data, g.accumulate});
      lease.close();
    }
    return model.step();
  }
  void set_batch(float value) {
    ts::detail::check_cuda(cudaMemcpyAsync(batch.data(), &value, sizeof value,
                                           cudaMemcpyHostToDevice, cudaStreamPerThread),
                           "a test's batch");
  }
  void set_rate(int step) { model.set_learning_rate(0.01f / static_cast<float>(1 + step)); }

  std::vector<float*> weights;
  OnDevice<float> batch;
  Model model;
  std::size_t elements;
  std::vector<ts::Unit> handles;
};

float batch_of(int step) { return 0.25f * static_cast<float>(step % 5) - 0.5f; }

template <class Strategy>
void check_graph(int units, ts::Options options) {
  options.collectives_at_one_rank = true;
  Net<Strategy> eager(units, options), captured(units, options);
  std::vector<double> norms, replayed;
  for (int s = 0; s < 9; ++s) {
    eager.set_rate(s);
    eager.set_batch(batch_of(s));
    norms.push_back(eager.step()->get().norm);
  }
  int s = 0;
  const auto prepare = [&] {
    captured.set_rate(s);
    captured.set_batch(batch_of(s));
    ++s;
  };
  for (int i = 0; i < 2; ++i) {
    prepare();
    replayed.push_back(captured.step()->get().norm);
  }
  {
    ts::StepGraph graph(captured.model, [&] { captured.step(); });
    CHECK(s == 2);  // it was recorded, not run
    for (int i = 0; i < 4; ++i) {
      prepare();
      const auto ticket = graph.replay();
      const ts::StepReport& report = ticket.get();
      replayed.push_back(report.norm);
      CHECK(report.step == static_cast<std::uint64_t>(s));
      CHECK(report.step_ms > 0);
      CHECK(!report.skipped);
    }
    prepare();  // as it is, in between
    replayed.push_back(captured.step()->get().norm);
    for (int i = 0; i < 2; ++i) {
      prepare();
      const auto ticket = graph.replay();  // not asked for its report until the next
      if (i == 1) (void)ticket.get();
    }
  }
  CHECK(std::vector<double>(norms.begin(), norms.begin() + 7) == replayed);
  CHECK(captured.model.parameters_digest() == eager.model.parameters_digest());
  CHECK(captured.model.moments_digest() == eager.model.moments_digest());
}

}  // namespace

TEST_CASE("replays have the bits of plain steps: rates, batches and clipping of their own") {
  ts::Options options;
  options.clip_norm = 20.0f;        // binds in some steps
  for (int units : {1, 2, 3, 5}) {  // an odd number over two slots must be a fixed point
    CAPTURE(units);
    for (int depth : {0, 1, 2}) {
      options.prefetch_depth = depth;
      check_graph<ts::Zero3<>>(units, options);
    }
    check_graph<ts::Zero2>(units, options);
    check_graph<ts::Zero1>(units, options);
    check_graph<ts::Replicate>(units, options);
    check_graph<ts::Zero3<ts::Reshard::after_backward>>(units, options);
  }
}

TEST_CASE("a gradient that is not finite skips that replay and no other") {
  ts::Options options;
  options.collectives_at_one_rank = true;
  Net<ts::Zero3<>> net(3, options);
  for (int i = 0; i < 2; ++i) (void)net.step()->get();
  ts::StepGraph graph(net.model, [&] { net.step(); });
  const std::uint64_t before = net.model.parameters_digest();
  net.set_batch(__builtin_inff());
  const ts::StepReport bad = graph.replay().get();
  CHECK(bad.skipped);
  CHECK(bad.step == 2);
  CHECK(net.model.parameters_digest() == before);
  net.set_batch(1.0f);
  const ts::StepReport good = graph.replay().get();
  CHECK(!good.skipped);
  CHECK(good.step == 3);
  CHECK(net.model.parameters_digest() != before);
}

TEST_CASE("what cannot be captured is refused, and plain steps go on") {
  ts::Options options;
  options.collectives_at_one_rank = true;
  Net<ts::Zero3<>> net(2, options);
  for (int i = 0; i < 2; ++i) (void)net.step()->get();
  const std::uint64_t before = net.model.parameters_digest();
  std::string said;
  try {
    ts::StepGraph graph(net.model, [&] { auto lease = net.model.forward(net.handles[0]); });
  } catch (const ts::Error& error) {
    said = error.what();
  }
  CHECK_MESSAGE(said.find("must call step()") != std::string::npos, said);
  struct Stop {};
  CHECK_THROWS_AS(ts::StepGraph(net.model, [&] { throw Stop(); }), Stop);
  CHECK(net.model.parameters_digest() == before);
  CHECK(!net.step()->get().skipped);
}

TEST_CASE("steps whose reports nobody reads yet: the ticket of an earlier one still has its own") {
  Net<ts::Zero2> net(3, {});
  std::vector<ts::StepTicket<ts::Cuda>> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(*net.step());
  for (std::size_t i = 0; i < tickets.size(); ++i) CHECK(tickets[i].get().step == i + 1);
}
