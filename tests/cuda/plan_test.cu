// The plan on the device: what cudaMalloc is asked for, and what is said when there is no room.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "device_memory.hpp"
#include "support/allocation_counter.hpp"

using namespace cuda_test;

namespace {

template <class Strategy>
using Model = ts::Shard<Strategy, ts::OnDevice, ts::Bf16, ts::Cuda>;

template <class Strategy, bool compares = true>
void check_bytes(int world) {
  ts::run_cuda_ranks(world, [&](ts::CudaInProcess ranks) {
    std::vector<ts::bf16*> weights(4, nullptr);
    Model<Strategy> model{ts::Mesh<ts::Cuda>(ranks)};
    std::vector<ts::Unit> units;
    for (std::size_t u = 0; u < weights.size(); ++u) {
      units.push_back(model.add_unit(std::to_string(u), ts::tensor(weights[u], {1000003})));
    }
    const allocation_counter::Count before = allocation_counter::of_this_thread();
    std::size_t free_before = 0, free_after = 0, total = 0;
    (void)ranks.exchange(0);
    ts::detail::check_cuda(cudaMemGetInfo(&free_before, &total), "a test");
    (void)ranks.exchange(0);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.5f; });
    (void)ranks.exchange(0);
    ts::detail::check_cuda(cudaMemGetInfo(&free_after, &total), "a test");
    const std::uint64_t planned = model.plan().total_bytes();
    CHECK((allocation_counter::of_this_thread() - before) == allocation_counter::Count{1, planned});
    // The driver keeps memory in pages of 2 MiB, takes one more now and then, and keeps freed ones
    // for a while.
    const std::uint64_t all = planned * static_cast<std::uint64_t>(world);
    const std::uint64_t pages = static_cast<std::uint64_t>(world) * (4u << 20);
    const std::uint64_t taken = free_before - free_after;
    int devices = 0;
    ts::detail::check_cuda(cudaGetDeviceCount(&devices), "a test");
    if (compares && devices == 1) {
      CHECK(taken + pages >= all);
      CHECK(taken <= all + pages);
    }
    for (int step = 0; step < 3; ++step) {
      for (ts::Unit unit : units) auto lease = model.forward(unit);
      for (std::size_t u = units.size(); u-- > 0;) {
        auto lease = model.backward(units[u]);
        const auto gradient = lease.gradient(weights[u]);
        ts::detail::check_cuda(
            cudaMemsetAsync(gradient.data, 0x11, gradient.size * 2, cudaStreamPerThread), "a test");
      }
      CHECK(!model.step().get().skipped);
    }
    CHECK((allocation_counter::of_this_thread() - before).bytes == planned);
  });
}

}  // namespace

TEST_CASE("planned bytes are what cudaMalloc and cudaMemGetInfo see, and nothing comes later") {
  check_bytes<ts::Zero3<>, false>(3);  // kernels take memory too, when they are loaded
  for (int world : {1, 2, 3}) {
    check_bytes<ts::Zero3<>>(world);
    check_bytes<ts::Zero2>(world);
    check_bytes<ts::Zero1>(world);
    check_bytes<ts::Replicate>(world);
  }
}

TEST_CASE("no room for the plan: its table, the largest units, and what is free") {
  ts::bf16 *small = nullptr, *large = nullptr;
  Model<ts::Zero3<>> model{ts::Mesh<ts::Cuda>::single()};
  (void)model.add_unit("small", ts::tensor(small, {1000}));
  (void)model.add_unit("large", ts::tensor(large, {std::int64_t{1} << 40}));
  std::string said;
  try {
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.5f; });
  } catch (const ts::Error& error) {
    said = error.what();
  }
  for (const char* part : {"out of memory: cannot allocate", "on device 0, which has",
                           "plan: zero3, bf16", "moments", "largest units", "large "}) {
    CHECK_MESSAGE(said.find(part) != std::string::npos, said);
  }
}
