// Whole steps over NCCL: the bits of in-process ranks, as they are and as a graph.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "nccl/check_nccl.hpp"

using namespace std::chrono_literals;
using namespace nccl_test;

namespace {

/// gradient = weight / 2 + something of the rank's, in bf16.
struct FakeBackward {
  const ts::bf16* weights;
  ts::bf16* gradients;
  int rank;
  TESSERA_HD void operator()(std::uint64_t i) const {
    const auto part = static_cast<int>((i * 7 + static_cast<std::uint64_t>(rank) * 3) % 16) - 8;
    gradients[i] = ts::to_bf16(ts::to_float(weights[i]) * 0.5f + static_cast<float>(part) * 0.125f);
  }
};

using Digests = std::pair<std::uint64_t, std::uint64_t>;

template <class Strategy, class Backend>
class Net {
 public:
  using Model = ts::Shard<Strategy, ts::OnDevice, ts::Bf16, Backend>;

  Net(ts::Mesh<Backend> mesh, const ts::Options& options)
      : model(std::move(mesh), ts::AdamW{.learning_rate = 0.01f}, options) {
    for (std::size_t u = 0; u < weights_.size(); ++u) {
      units_.push_back(
          model.add_unit(std::to_string(u), ts::tensor(weights_[u], {5000 + std::int64_t(u)})));
    }
    model.materialize([](const ts::TensorInfo& info, std::uint64_t i) {
      return static_cast<float>((i * 5 + info.id) % 16) / 8 - 1;
    });
  }
  ts::StepTicket<Backend> step() {
    for (ts::Unit unit : units_) auto lease = model.forward(unit);
    for (std::size_t u = units_.size(); u-- > 0;) {
      auto lease = model.backward(units_[u]);
      const auto gradient = lease.gradient(weights_[u]);
      ts::detail::launch_for_each(cudaStreamPerThread, gradient.size,
                                  FakeBackward{weights_[u], gradient.data, model.rank()});
    }
    return model.step();
  }
  Digests digests() { return {model.parameters_digest(), model.moments_digest()}; }

 private:
  std::array<ts::bf16*, 5> weights_{};
  std::vector<ts::Unit> units_;

 public:
  Model model;  // last: it ends before what it refers to
};

template <class Strategy, class Backend>
Digests train(ts::Mesh<Backend> mesh, const ts::Options& options, int steps = 5) {
  Net<Strategy, Backend> net(std::move(mesh), options);
  for (int i = 0; i < steps; ++i) CHECK(!net.step().get().skipped);
  return net.digests();
}

template <class Strategy>
Digests in_process(int world, const ts::Options& options) {
  Digests result;
  ts::run_cuda_ranks(world, [&](ts::CudaInProcess ranks) {
    const Digests mine = train<Strategy>(ts::Mesh<ts::Cuda>(ranks), options);
    if (ranks.rank() == 0) result = mine;
  });
  return result;
}

template <class Strategy>
void check_one_rank() {
  ts::Options options;
  options.collectives_at_one_rank = true;
  options.clip_norm = 3;
  NcclOptions forced;
  forced.force_at_one_rank = true;
  const Nccl ranks = Nccl::from_unique_id(ts::detail::make_unique_id(), 0, 1, forced);
  const Digests wanted = in_process<Strategy>(1, options);
  CHECK(train<Strategy>(ts::Mesh<ts::CudaNccl>(ranks), options) == wanted);
  {  // the plan in a window, where NCCL makes one
    NcclOptions windows = forced;
    windows.symmetric_windows = true;
    windows.cta_policy = NCCL_CTA_POLICY_ZERO;
    const Nccl group = Nccl::from_unique_id(ts::detail::make_unique_id(), 0, 1, windows);
    Net<Strategy, ts::CudaNccl> net(ts::Mesh<ts::CudaNccl>(group), options);
    for (int i = 0; i < 5; ++i) CHECK(!net.step().get().skipped);
    CHECK(net.digests() == wanted);
    std::printf("transport: %s\n", net.model.transport().c_str());
    CHECK(net.model.transport().find("CTA policy ZERO") != std::string::npos);
  }
  Net<Strategy, ts::CudaNccl> net(ts::Mesh<ts::CudaNccl>(ranks), options);
  for (int i = 0; i < 2; ++i) (void)net.step().get();
  {
    ts::StepGraph graph(net.model, [&] { (void)net.step(); });
    for (int i = 0; i < 3; ++i) CHECK(!graph.replay().get().skipped);
  }
  CHECK(net.digests() == wanted);
}

template <class Strategy>
void check_ranks(int world, const ts::Options& options, const NcclOptions& nccl = {},
                 const char* transport = "", bool graph = false) {
  const Digests wanted = in_process<Strategy>(world, options);
  const ncclUniqueId id = ts::detail::make_unique_id();
  std::vector<Digests> got(static_cast<std::size_t>(world));
  std::vector<std::string> thrown(got.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        must(cudaSetDevice(r), "cudaSetDevice");
        NcclOptions patient = nccl;
        patient.timeout = 60s;
        const Nccl ranks = Nccl::from_unique_id(id, r, world, patient);
        Net<Strategy, ts::CudaNccl> net(ts::Mesh<ts::CudaNccl>(ranks), options);
        CHECK(contains(net.model.transport(), transport));
        for (int step = 0; step < (graph ? 2 : 5); ++step) CHECK(!net.step().get().skipped);
        if (graph) {
          ts::StepGraph recorded(net.model, [&] { (void)net.step(); });
          for (int step = 0; step < 3; ++step) CHECK(!recorded.replay().get().skipped);
        }
        got[i] = net.digests();
      } catch (const std::exception& error) {
        thrown[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : thrown) CHECK(what == "");
  for (const Digests& digests : got) CHECK(digests == wanted);
}

}  // namespace

TEST_CASE("one rank that is made to use NCCL: the bits of one that copies, also as a graph") {
  if (!have_devices(1)) return;
  check_one_rank<ts::Zero3<>>();
  check_one_rank<ts::Zero2>();
  check_one_rank<ts::Replicate>();
}

TEST_CASE("a rank a device: the bits of in-process ranks, by strategy, bucket and depth") {
  if (!have_devices(2)) return;
  const int world = std::min(device_count(), 8);
  ts::Options options;
  options.clip_norm = 3;
  NcclOptions kernels, windows, copies;
  kernels.transport = windows.transport = ts::NcclTransport::nccl;
  windows.symmetric_windows = true;
  windows.cta_policy = NCCL_CTA_POLICY_ZERO;
  copies.transport = ts::NcclTransport::peer_copies;
  for (std::uint64_t bucket : {std::uint64_t{0}, std::uint64_t{7000}, std::uint64_t{1} << 30}) {
    options.bucket_bytes = bucket;
    options.prefetch_depth = bucket == 0 ? 2 : 1;
    check_ranks<ts::Zero3<>>(world, options);
    for (const NcclOptions* nccl : {&kernels, &copies}) {
      check_ranks<ts::Zero3<>>(world, options, *nccl);
      check_ranks<ts::Zero2>(world, options, *nccl);
      check_ranks<ts::Zero1>(world, options, *nccl);
      check_ranks<ts::Replicate>(world, options, *nccl);
    }
    check_ranks<ts::Zero3<>>(world, options, windows);
  }
}

TEST_CASE("copies between ranks are what is said to be used, and are replayed") {
  if (!have_devices(2)) return;
  ts::Options options;
  options.clip_norm = 3;
  NcclOptions nccl;
  nccl.transport = ts::NcclTransport::nccl;
  check_ranks<ts::Zero3<>>(2, options, nccl, "All-gathers by kernels");
  nccl.transport = ts::NcclTransport::peer_copies;
  check_ranks<ts::Zero3<>>(2, options, nccl, "by copy engines");
  check_ranks<ts::Zero3<>>(2, options, nccl, "by copy engines", true);
  check_ranks<ts::Zero2>(2, options, nccl, "by copy engines", true);
}
