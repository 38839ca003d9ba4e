// The optimizer runs unit by unit: the next forward's first gather does not wait for the last one.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;

namespace {

constexpr std::int64_t kSmall = 1 << 16;
constexpr std::int64_t kLarge = 1 << 25;

struct Slope {
  float* values;
  TESSERA_HD void operator()(std::uint64_t i) const { values[i] = 0.5f; }
};

}  // namespace

TEST_CASE("a unit's gather begins while the units behind it are still being updated") {
  ts::Options options;
  options.collectives_at_one_rank = true;
  options.trace = true;
  ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, ts::Cuda> model(ts::Mesh<ts::Cuda>::single(), {},
                                                                 options);
  float* first = nullptr;
  float* last = nullptr;
  const ts::Unit units[] = {model.add_unit("first", ts::tensor(first, {kSmall})),
                            model.add_unit("last", ts::tensor(last, {kLarge}))};
  model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
  for (int step = 0; step < 3; ++step) {
    for (const ts::Unit unit : units) auto lease = model.forward(unit);
    for (const bool is_last : {true, false}) {
      auto lease = model.backward(units[is_last ? 1 : 0]);
      const auto gradient = lease.gradient(is_last ? last : first);
      ts::detail::launch_for_each(cudaStreamPerThread, gradient.size, Slope{gradient.data});
    }
    const auto ticket = model.step();
    if (step == 2) {
      auto lease = model.forward(units[0]);
      lease.close();
      (void)model.step().get();  // so that what ran is in the trace
    }
  }
  std::int64_t update_ends = 0, gather_begins = 0;
  for (const ts::TraceEvent& event : model.trace()) {
    if (event.name == "update" && event.end_ns - event.begin_ns > 100000) {
      update_ends = event.end_ns;
    }
    if (event.name == "gather" && event.unit == "first") gather_begins = event.begin_ns;
  }
  REQUIRE(update_ends > 0);
  CHECK(gather_begins < update_ends);
}
