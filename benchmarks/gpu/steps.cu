// Whole steps, a benchmark for each policy of a list of types: what the library's calls cost the
// host, and what moves. The trainer's kernels are left out, so that the rest shows.
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "harness.hpp"

namespace bench {
namespace {

template <class StrategyType, class PrecisionType>
struct Policy {
  using Strategy = StrategyType;
  using Precision = PrecisionType;
  static std::string name() {
    return std::string(Strategy::describe().name) + "/" + Precision::describe().name;
  }
};

template <class... Policies>
struct List {};

using All =
    List<Policy<ts::Zero3<>, ts::Bf16>, Policy<ts::Zero3<ts::Reshard::after_backward>, ts::Bf16>,
         Policy<ts::Zero2, ts::Bf16>, Policy<ts::Zero1, ts::Bf16>, Policy<ts::Replicate, ts::Bf16>,
         Policy<ts::Zero3<>, ts::Fp32>, Policy<ts::Zero3<>, ts::WithGradients<ts::Bf16, float>>>;

/// Units of eight tensors, as a transformer block has.
template <class P>
class Model {
 public:
  using Element =
      std::conditional_t<std::is_same_v<typename P::Precision, ts::Fp32>, float, ts::bf16>;
  using Shard = ts::Shard<typename P::Strategy, ts::OnDevice, typename P::Precision, ts::Cuda>;

  Model(ts::Mesh<ts::Cuda> mesh, int units, std::int64_t elements, ts::Options options)
      : tensors_(static_cast<std::size_t>(units)), shard_(std::move(mesh), ts::AdamW{}, options) {
    for (std::size_t u = 0; u < tensors_.size(); ++u) {
      auto& t = tensors_[u];
      const ts::Shape shape{elements / 8};
      units_.push_back(shard_.add_unit(
          "unit" + std::to_string(u), ts::tensor(t[0], shape), ts::tensor(t[1], shape),
          ts::tensor(t[2], shape), ts::tensor(t[3], shape), ts::tensor(t[4], shape),
          ts::tensor(t[5], shape), ts::tensor(t[6], shape), ts::tensor(t[7], shape)));
    }
    shard_.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
  }

  ts::StepTicket<ts::Cuda> step() {
    for (std::size_t u = 0; u < units_.size(); ++u) auto lease = shard_.forward(units_[u]);
    for (std::size_t u = units_.size(); u-- > 0;) {
      auto lease = shard_.backward(units_[u]);
      for (Element*& tensor : tensors_[u]) (void)lease.gradient(tensor);  // written by nobody
    }
    return shard_.step();
  }
  Shard& shard() { return shard_; }

 private:
  std::vector<std::array<Element*, 8>> tensors_;
  Shard shard_;
  std::vector<ts::Unit> units_;
};

struct Costs {
  std::vector<double> host_us, step_ms, communication_ms;

  void add(const ts::StepReport& report) {
    host_us.push_back(report.host_enqueue_us);
    step_ms.push_back(report.step_ms);
    communication_ms.push_back(report.communication_ms);
  }
  void report(Results& results, const std::string& name) const {
    results.add(name, "host enqueue", median(host_us), "us/step");
    results.add(name, "step", median(step_ms), "ms");
    results.add(name, "collectives", median(communication_ms), "ms");
  }
};

/// One rank with collectives forced, as several would have them: as it is, and replayed.
template <class P>
void host_cost(Results& results) {
  ts::Options options;
  options.collectives_at_one_rank = true;
  Model<P> model(ts::Mesh<ts::Cuda>::single(), 32, 1 << 14, options);
  Costs plain, replayed;
  for (int i = 0; i < 30; ++i) {
    const ts::StepReport report = model.step().get();
    if (i >= 10) plain.add(report);
  }
  plain.report(results, "step/" + P::name() + "/1-rank/32-units");
  ts::StepGraph graph(model.shard(), [&] { (void)model.step(); });
  for (int i = 0; i < 30; ++i) {
    const ts::StepReport report = graph.replay().get();
    if (i >= 10) replayed.add(report);
  }
  replayed.report(results, "step/" + P::name() + "/1-rank/32-units/graph");
}

/// Several in-process ranks on the GPUs there are, 16 units of 4 Mi parameters.
template <class P>
void in_process(Results& results, int ranks) {
  Costs costs;
  ts::run_cuda_ranks(ranks, [&](ts::CudaInProcess communicator) {
    ts::Options options;
    Model<P> model(ts::Mesh<ts::Cuda>(communicator), 16, 1 << 22, options);
    for (int i = 0; i < 8; ++i) {
      const ts::StepReport report = model.step().get();
      if (i >= 3 && communicator.rank() == 0) costs.add(report);
    }
  });
  costs.report(results, "step/" + P::name() + "/" + std::to_string(ranks) + "-ranks/16x4Mi");
}

template <class... Policies>
void add(std::vector<Benchmark>& list, List<Policies...>) {
  (list.push_back({"step/" + Policies::name() + "/1-rank", host_cost<Policies>}), ...);
  for (int ranks : {2, 4}) {
    (list.push_back({"step/" + Policies::name() + "/" + std::to_string(ranks) + "-ranks",
                     [ranks](Results& r) { in_process<Policies>(r, ranks); }}),
     ...);
  }
}

}  // namespace

void add_steps(std::vector<Benchmark>& list) { add(list, All{}); }

}  // namespace bench
