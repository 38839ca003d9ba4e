// Kernels as a fraction of the copy bandwidth measured beside them.
#include "harness.hpp"

namespace bench {
namespace {

constexpr std::size_t kElements = std::size_t{256} << 20;

/// A stream, its runtime, and what cudaMemcpyAsync moves per second, read and write together.
struct Bench {
  ts::CudaRuntime runtime;
  ts::CudaStream& compute = runtime.stream(ts::StreamKind::compute);

  double copy_bytes_per_ms() {
    const Array<float> from(kElements), to(kElements);
    const double ms = milliseconds(
        compute.handle, [&] { runtime.copy(compute, to.data(), from.data(), kElements * 4); }, 10);
    return 8.0 * kElements / ms;
  }
};

template <class Call>
void report(Results& results, const std::string& name, Bench& bench, double bytes, Call&& call) {
  const double copy = bench.copy_bytes_per_ms();
  const double ms = milliseconds(bench.compute.handle, call, 10);
  results.add(name, "time", ms, "ms");
  results.add(name, "bandwidth", bytes / ms / 1e9, "TB/s");
  results.add(name, "copy bandwidth beside it", copy / 1e9, "TB/s");
  results.add(name, "fraction of copy", bytes / ms / copy, "");
}

struct Cast {
  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  TESSERA_HD void operator()(const R& from, R& to) const {
    to = from;
  }
};
struct Add {
  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  TESSERA_HD void operator()(R& sum, const R& term) const {
    sum = sum + term;
  }
};

void casts(Results& results) {
  Bench bench;
  const Array<float> wide(kElements);
  const Array<ts::bf16> narrow(kElements);
  report(results, "cast/f32-to-bf16", bench, 6.0 * kElements, [&] {
    bench.runtime.transform(bench.compute, kElements, Cast{}, ts::In<float>{wide.data()},
                            ts::Out<ts::bf16>{narrow.data()});
  });
  report(results, "cast/bf16-to-f32", bench, 6.0 * kElements, [&] {
    bench.runtime.transform(bench.compute, kElements, Cast{}, ts::In<ts::bf16>{narrow.data()},
                            ts::Out<float>{wide.data()});
  });
  report(results, "accumulate/bf16-into-f32", bench, 10.0 * kElements, [&] {
    bench.runtime.transform(bench.compute, kElements, Add{}, ts::InOut<float>{wide.data()},
                            ts::In<ts::bf16>{narrow.data()});
  });
}

/// The engine's own rule, over as many ranges as a model has tensors.
void adamw(Results& results, bool rounds) {
  Bench bench;
  using Rule = ts::engine::ElementwiseRule<ts::CudaRuntime, ts::AdamW>;
  const Rule rule(ts::AdamW{.weight_decay = 0.1f});
  const Array<float> weights(kElements), gradients(kElements), m(kElements), v(kElements);
  const Array<ts::bf16> parameters(rounds ? kElements : 1);
  std::vector<ts::ElementRange> ranges;
  std::uint32_t blocks = 0;
  for (std::uint64_t begin = 0; begin < kElements; begin += kElements / 16) {
    ranges.push_back({begin, kElements / 16, 1, blocks});
    blocks += ts::range_blocks(kElements / 16);
  }
  const Array<ts::ElementRange> resident(ranges.size());
  const Array<ts::engine::StepScalars> scalars(1);
  const Array<ts::engine::UpdateSetting> settings(2);
  const Array<std::byte> memory(rule.rule_bytes(2));
  const ts::engine::StepScalars decided{1.0, 1e-3f, 0.5f, 0};
  const ts::engine::UpdateSetting set[2] = {{1, 0}, {1, 0.1f}};
  bench.runtime.write(bench.compute, resident.data(), ranges.data(),
                      ranges.size() * sizeof(ranges[0]));
  bench.runtime.write(bench.compute, scalars.data(), &decided, sizeof decided);
  bench.runtime.write(bench.compute, settings.data(), set, sizeof set);
  const ts::engine::UpdateMemory where{scalars.data(), settings.data(), 2, memory.data()};
  rule.start(bench.runtime, bench.compute, where);
  rule.advance(bench.runtime, bench.compute, where);
  ts::engine::UpdateArrays arrays;
  arrays.ranges = ranges;
  arrays.resident = resident.data();
  arrays.dtype = rounds ? ts::DType::bf16 : ts::DType::f32;
  arrays.parameters = weights.data();
  if (rounds) {
    arrays.parameters = parameters.data();
    arrays.master = weights.data();
  }
  arrays.gradients = gradients.data();
  arrays.moments = {m.data(), v.data()};
  report(results, rounds ? "adamw/f32-states-bf16-out" : "adamw/f32", bench,
         (rounds ? 30.0 : 28.0) * kElements,
         [&] { rule.update(bench.runtime, bench.compute, arrays, where); });
}

void norm(Results& results) {
  Bench bench;
  const Array<float> data(kElements);
  std::vector<ts::NormRange> ranges;
  const std::uint64_t each = kElements / 16;
  const auto nodes = static_cast<std::uint64_t>(ts::node_count(0, ts::cells_of(each)));
  const std::uint64_t windows = ts::windows_of(0, ts::cells_of(each), ts::CudaRuntime::norm_window);
  const Array<double> out(nodes * 16), partials(windows * 16);
  for (std::uint64_t i = 0; i < 16; ++i) {
    ranges.push_back({data.data() + each * i, 0, each, out.data() + nodes * i,
                      partials.data() + windows * i, windows * i});
  }
  const Array<ts::NormRange> resident(ranges.size());
  bench.runtime.write(bench.compute, resident.data(), ranges.data(),
                      ranges.size() * sizeof(ranges[0]));
  for (ts::NormKind kind : {ts::NormKind::l2, ts::NormKind::inf}) {
    report(results, kind == ts::NormKind::l2 ? "norm/l2" : "norm/inf", bench, 4.0 * kElements,
           [&] { bench.runtime.norm_nodes(bench.compute, kind, ranges, resident.data()); });
  }
}

template <class T>
void sum(Results& results, int ranks, bool accumulate) {
  Bench bench;
  const std::size_t n = kElements / 2;
  const Array<T> source(n * static_cast<std::size_t>(ranks));
  const Array<float> out(n);
  std::vector<const T*> sources;
  for (int r = 0; r < ranks; ++r)
    sources.push_back(source.data() + n * static_cast<std::size_t>(r));
  const double bytes =
      static_cast<double>(n) * (static_cast<double>(sizeof(T)) * ranks + (accumulate ? 8.0 : 4.0));
  report(results,
         std::string("rank-sum/") + (sizeof(T) == 2 ? "bf16" : "f32") + "-x" +
             std::to_string(ranks) + (accumulate ? "-accumulate" : ""),
         bench, bytes, [&] {
           ts::detail::launch_rank_sum(bench.compute.handle, n, sources.data(), ranks, 0.5f,
                                       accumulate, out.data());
         });
}

}  // namespace

void add_primitives(std::vector<Benchmark>& list) {
  list.push_back({"primitive/cast", casts});
  list.push_back({"primitive/adamw", [](Results& r) {
                    adamw(r, true);
                    adamw(r, false);
                  }});
  list.push_back({"primitive/norm", norm});
  list.push_back({"primitive/rank-sum", [](Results& r) {
                    sum<float>(r, 2, false);
                    sum<float>(r, 4, true);
                    sum<ts::bf16>(r, 2, false);
                    sum<ts::bf16>(r, 4, true);
                  }});
}

}  // namespace bench
