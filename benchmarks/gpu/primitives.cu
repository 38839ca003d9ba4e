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

/// The engine's own rule on tensors of type `dtype`, over as many ranges as a model has tensors.
template <class Precision>
void adamw(Results& results, const std::string& name, ts::DType dtype) {
  Bench bench;
  constexpr ts::PrecisionDescription kPrecision = Precision::describe();
  using Rule = ts::engine::ElementwiseRule<ts::CudaRuntime, ts::AdamW, kPrecision.storage()>;
  const Rule rule(ts::AdamW{.weight_decay = 0.1f});
  const std::size_t weight = ts::size_of(dtype), master = kPrecision.master_bytes(dtype);
  const std::size_t gradient = ts::size_of(kPrecision.reduced_of(dtype));
  const std::size_t moment = ts::size_of(kPrecision.moments);
  const Array<std::byte> parameters(weight * kElements), masters(master * kElements + 1);
  const Array<std::byte> gradients(gradient * kElements);
  const Array<std::byte> m(moment * kElements), v(moment * kElements);
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
  arrays.dtype = dtype;
  arrays.parameters = parameters.data();
  arrays.master = masters.data();
  arrays.gradients = gradients.data();
  arrays.moments = {m.data(), v.data()};
  // Beside an fp32 master the parameter is written only.
  const std::size_t bytes =
      (master == 4 ? weight : 2 * weight) + 2 * master + gradient + 4 * moment;
  report(results, "adamw/" + name, bench, static_cast<double>(bytes * kElements),
         [&] { rule.update(bench.runtime, bench.compute, arrays, where); });
}

template <class T>
void norm(Results& results) {
  Bench bench;
  const Array<T> data(kElements);
  std::vector<ts::NormRange> ranges;
  const std::uint64_t each = kElements / 16;
  const auto nodes = static_cast<std::uint64_t>(ts::node_count(0, ts::cells_of(each)));
  const std::uint64_t windows = ts::windows_of(0, ts::cells_of(each), ts::CudaRuntime::norm_window);
  const Array<double> out(nodes * 16), partials(windows * 16);
  for (std::uint64_t i = 0; i < 16; ++i) {
    ranges.push_back({data.data() + each * i, 0, each, out.data() + nodes * i,
                      partials.data() + windows * i, windows * i, ts::ElementTraits<T>::dtype});
  }
  const Array<ts::NormRange> resident(ranges.size());
  bench.runtime.write(bench.compute, resident.data(), ranges.data(),
                      ranges.size() * sizeof(ranges[0]));
  for (ts::NormKind kind : {ts::NormKind::l2, ts::NormKind::inf}) {
    const std::string name = kind == ts::NormKind::l2 ? "norm/l2" : "norm/inf";
    report(results, name + (sizeof(T) == 2 ? "-bf16" : ""), bench, 1.0 * sizeof(T) * kElements,
           [&] { bench.runtime.norm_nodes(bench.compute, kind, ranges, resident.data()); });
  }
}

template <class T, class O = float>
void sum(Results& results, int ranks, bool accumulate) {
  Bench bench;
  const std::size_t n = kElements / 2;
  const Array<T> source(n * static_cast<std::size_t>(ranks));
  const Array<O> out(n);
  std::vector<const T*> sources;
  for (int r = 0; r < ranks; ++r)
    sources.push_back(source.data() + n * static_cast<std::size_t>(r));
  const double bytes = static_cast<double>(n) * (static_cast<double>(sizeof(T)) * ranks +
                                                 (accumulate ? 2.0 : 1.0) * sizeof(O));
  report(results,
         std::string("rank-sum/") + (sizeof(T) == 2 ? "bf16" : "f32") + "-x" +
             std::to_string(ranks) + (accumulate ? "-accumulate" : "") +
             (sizeof(O) == 2 ? "-to-bf16" : ""),
         bench, bytes, [&] {
           ts::detail::launch_rank_sum(bench.compute.handle, n, sources.data(), ranks, 0.5f,
                                       accumulate, out.data());
         });
}

}  // namespace

void add_primitives(std::vector<Benchmark>& list) {
  list.push_back({"primitive/cast", casts});
  list.push_back({"primitive/adamw", [](Results& r) {
                    using Reduced = ts::WithReduced<ts::Bf16, ts::bf16>;
                    using Split = ts::SplitMaster<Reduced>;
                    using Pure = ts::PureBf16<>;
                    const ts::DType half = ts::DType::bf16;
                    adamw<ts::Bf16>(r, "f32-states-bf16-out", half);
                    adamw<ts::Fp32>(r, "f32", ts::DType::f32);
                    adamw<Reduced>(r, "reduced-bf16", half);
                    adamw<Split>(r, "split-master", half);
                    adamw<ts::WithMoments<Split, ts::bf16>>(r, "split-master-bf16-moments", half);
                    adamw<Pure>(r, "pure-bf16", half);
                    adamw<ts::WithMoments<Pure, ts::bf16>>(r, "pure-bf16-bf16-moments", half);
                  }});
  list.push_back({"primitive/norm", [](Results& r) {
                    norm<float>(r);
                    norm<ts::bf16>(r);
                  }});
  list.push_back({"primitive/rank-sum", [](Results& r) {
                    sum<float>(r, 2, false);
                    sum<float>(r, 4, true);
                    sum<ts::bf16>(r, 2, false);
                    sum<ts::bf16>(r, 4, true);
                    sum<ts::bf16, ts::bf16>(r, 2, false);
                    sum<ts::bf16, ts::bf16>(r, 4, true);
                  }});
}

}  // namespace bench
