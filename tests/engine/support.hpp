// A model whose steps have a closed form: weights and gradients are dyadic numbers with few bits,
// so that every order of summation gives the same float, and an unsharded reference in double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/tessera.hpp>

#include "support/backend.hpp"

namespace engine_test {

namespace ts = tessera;

template <class Strategy, class Precision = ts::Fp32, class Optimizer = ts::Sgd>
using ShardOf = ts::Shard<Strategy, ts::OnDevice, Precision, under_test::Backend, Optimizer>;

using Keep = ts::Zero3<ts::Reshard::after_backward>;

/// A unit by the sizes of its tensors; `frozen` lists the places of those without gradient.
struct UnitSpec {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::vector<std::size_t> frozen = {};
  ts::UnitOptions options = {};

  bool is_frozen(std::size_t tensor) const {
    return std::find(frozen.begin(), frozen.end(), tensor) != frozen.end();
  }
};

/// n units "0", "1", ... of one tensor each.
inline std::vector<UnitSpec> blocks(int n, std::int64_t size = 256) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < n; ++i) units.push_back({std::to_string(i), {size}});
  return units;
}

/// The same with a unit "root" in front whose lease stays open around the others'.
inline std::vector<UnitSpec> blocks_and_root(int n, std::int64_t size = 256) {
  std::vector<UnitSpec> units = blocks(n, size);
  units.insert(units.begin(), {"root", {size}, {}, {.outer = true}});
  return units;
}

/// Eighths in [-1, 1).
inline float first_value(std::uint32_t tensor, std::uint64_t index) {
  return static_cast<float>(static_cast<int>((index * 5 + tensor * 3) % 16) - 8) / 8;
}

/// The part of a gradient that does not depend on the weight: eighths in [-1, 1).
inline float slope(int rank, int micro, std::uint32_t tensor, std::uint64_t index) {
  const auto mixed = index * 7 + tensor * 5 + static_cast<std::uint64_t>(rank * 3 + micro * 11);
  return static_cast<float>(static_cast<int>(mixed % 16) - 8) / 8;
}

/// d loss / d weight on one rank in one micro-step.
inline float gradient_at(int rank, int micro, std::uint32_t tensor, std::uint64_t index,
                         float weight) {
  return weight / 2 + slope(rank, micro, tensor, index);
}

/// SGD without momentum on the whole model, in double.
struct Reference {
  std::vector<std::vector<double>> weights;
  std::vector<std::vector<double>> gradients;

  void contribute(int world, double divisor, int micro, std::uint32_t tensor) {
    std::vector<double>& sum = gradients[tensor];
    sum.resize(weights[tensor].size());
    for (std::uint64_t i = 0; i < sum.size(); ++i) {
      const auto weight = static_cast<float>(weights[tensor][i]);
      for (int r = 0; r < world; ++r) sum[i] += gradient_at(r, micro, tensor, i, weight) / divisor;
    }
  }
  void step(double rate) {
    for (std::size_t t = 0; t < weights.size(); ++t) {
      for (std::size_t i = 0; i < gradients[t].size(); ++i) weights[t][i] -= rate * gradients[t][i];
      gradients[t].clear();
    }
  }
};

/// How many values differ, NaN included.
template <class A, class B>
std::size_t differences(const A& actual, const B& expected) {
  if (actual.size() != expected.size()) return actual.size() + expected.size();
  std::size_t count = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    count += static_cast<double>(actual[i]) == static_cast<double>(expected[i]) ? 0 : 1;
  }
  return count;
}

inline constexpr float kRate = 0.25f;

/// One rank of such a model. Every lease compares all of the unit's weights with the reference.
template <class Strategy>
class Toy {
 public:
  using Model = ShardOf<Strategy>;

  Toy(under_test::Ranks ranks, const std::vector<UnitSpec>& specs, ts::Options options = {},
      under_test::RuntimeOptions host = {})
      : Toy(ts::Mesh<under_test::Backend>(ranks, host), specs, std::move(options)) {}

  Toy(ts::Mesh<under_test::Backend> mesh, const std::vector<UnitSpec>& specs, ts::Options options)
      : specs_(specs),
        divisor_(options.gradient_divisor),
        model(mesh, ts::Sgd{.learning_rate = kRate},
              exact(mesh.shape().data_ranks(), std::move(options), divisor_)) {
    std::uint32_t id = 0;
    for (const UnitSpec& spec : specs_) {
      auto& spans = tensors.emplace_back();
      for (std::int64_t size : spec.sizes) {
        spans.emplace_back(static_cast<float*>(nullptr), static_cast<std::size_t>(size));
      }
      add(spec, spans);
      first_id_.push_back(id);
      for (std::int64_t size : spec.sizes) {
        std::vector<double> values(static_cast<std::size_t>(size));
        for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = first_value(id, i);
        reference.weights.push_back(std::move(values));
        ++id;
      }
    }
    reference.gradients.resize(id);
    model.materialize([](const ts::TensorInfo& info, std::uint64_t index) {
      return first_value(info.id, index);
    });
  }

  /// Among the ranks with other data.
  int rank() const {
    const ts::MeshShape& mesh = model.mesh_shape();
    return mesh.data_rank(mesh.place(model.rank()));
  }
  int count() const { return static_cast<int>(specs_.size()); }
  ts::Unit unit(int u) const { return {static_cast<std::uint32_t>(u)}; }
  std::uint32_t id(int u, std::size_t tensor) const {
    return first_id_[static_cast<std::size_t>(u)] + static_cast<std::uint32_t>(tensor);
  }
  std::span<float>& tensor(int u, std::size_t t = 0) {
    return tensors[static_cast<std::size_t>(u)][t];
  }

  /// The weights that are there now are the reference's.
  void check_weights(int u) {
    auto& spans = tensors[static_cast<std::size_t>(u)];
    for (std::size_t t = 0; t < spans.size(); ++t) {
      CHECK(differences(under_test::read(spans[t].data(), spans[t].size()),
                        reference.weights[id(u, t)]) == 0);
    }
  }
  void forward(int u) {
    auto lease = model.forward(unit(u));
    check_weights(u);
    lease.close();
  }
  /// Writes, or adds to, the gradients of tensor `only`, or of all, through an open lease.
  template <class Lease>
  void write_gradients(int u, Lease& lease, int micro = 0, int only = -1) {
    const UnitSpec& spec = specs_[static_cast<std::size_t>(u)];
    for (std::size_t t = 0; t < spec.sizes.size(); ++t) {
      if (spec.is_frozen(t) || (only >= 0 && t != static_cast<std::size_t>(only))) continue;
      const auto gradient = lease.gradient(tensor(u, t));
      const std::vector<float> weights = under_test::read(tensor(u, t).data(), gradient.size);
      std::vector<float> values(gradient.size);
      if (gradient.accumulate) values = under_test::read(gradient.data, gradient.size);
      for (std::uint64_t i = 0; i < gradient.size; ++i) {
        const float value = gradient_at(rank(), micro, id(u, t), i, weights[i]);
        values[i] = gradient.accumulate ? values[i] + value : value;
      }
      under_test::write(gradient.data, values);
    }
  }
  /// What write_gradients of all ranks comes to.
  void expect_gradients(int u, int micro = 0, int only = -1) {
    const UnitSpec& spec = specs_[static_cast<std::size_t>(u)];
    for (std::size_t t = 0; t < spec.sizes.size(); ++t) {
      if (spec.is_frozen(t) || (only >= 0 && t != static_cast<std::size_t>(only))) continue;
      reference.contribute(model.mesh_shape().data_ranks(), divisor_, micro, id(u, t));
    }
  }
  void backward(int u, int micro = 0, int only = -1) {
    auto lease = model.backward(unit(u));
    check_weights(u);
    write_gradients(u, lease, micro, only);
    lease.close();
    expect_gradients(u, micro, only);
  }
  void forward_all() {
    if (specs_[0].options.outer) {
      auto root = model.forward(unit(0));
      check_weights(0);
      for (int u = 1; u < count(); ++u) forward(u);
    } else {
      for (int u = 0; u < count(); ++u) forward(u);
    }
  }
  void backward_all(int micro = 0) {
    if (specs_[0].options.outer) {
      auto root = model.backward(unit(0));
      for (int u = count() - 1; u > 0; --u) backward(u, micro);
      write_gradients(0, root, micro);
      expect_gradients(0, micro);
    } else {
      for (int u = count() - 1; u >= 0; --u) backward(u, micro);
    }
  }
  ts::StepReport step() {
    const ts::StepReport report = model.step().get();
    if (!report.skipped) reference.step(kRate);
    return report;
  }
  ts::StepReport whole_step(int micro_steps = 1) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      forward_all();
      backward_all(micro);
    }
    return step();
  }
  /// The full parameters are the reference's on every rank. Collective.
  void check() {
    for (const ts::TensorInfo& info : model.tensors()) {
      CHECK_MESSAGE(
          differences(model.full(ts::State::parameter(), info), reference.weights[info.id]) == 0,
          info.name);
    }
  }

  std::deque<std::vector<std::span<float>>> tensors;  // ahead of the model, which rebinds them

 private:
  static ts::Options exact(int world, ts::Options options, double& divisor) {
    const bool power_of_two = (world & (world - 1)) == 0;
    if (divisor == 0 && !power_of_two) options.gradient_divisor = 1;
    divisor = options.gradient_divisor > 0 ? options.gradient_divisor : world;
    return options;
  }

  // add_unit takes tensors one by one; the harness has them in a list.
  struct List {
    const UnitSpec& spec;
    std::vector<std::span<float>>& spans;
  };
  template <class... Done>
  void add(const UnitSpec& spec, std::vector<std::span<float>>& spans) {
    const auto at = [&](std::size_t t) -> std::span<float>& { return spans[t]; };
    const auto f = [&](std::size_t t) { return spec.is_frozen(t); };
    const ts::UnitOptions& o = spec.options;
    switch (spec.sizes.size()) {
      case 0: (void)model.add_unit(spec.name, o); return;
      case 1:
        f(0) ? (void)model.add_unit(spec.name, o, ts::frozen(at(0)))
             : (void)model.add_unit(spec.name, o, at(0));
        return;
      case 2:
        if (f(0) && f(1)) {
          (void)model.add_unit(spec.name, o, ts::frozen(at(0)), ts::frozen(at(1)));
        } else if (f(0)) {
          (void)model.add_unit(spec.name, o, ts::frozen(at(0)), at(1));
        } else if (f(1)) {
          (void)model.add_unit(spec.name, o, at(0), ts::frozen(at(1)));
        } else {
          (void)model.add_unit(spec.name, o, at(0), at(1));
        }
        return;
      case 3: (void)model.add_unit(spec.name, o, at(0), at(1), at(2)); return;
      default: (void)model.add_unit(spec.name, o, at(0), at(1), at(2), at(3)); return;
    }
  }

  std::vector<UnitSpec> specs_;
  std::vector<std::uint32_t> first_id_;
  double divisor_;

 public:
  Model model;  // last: it ends before what it refers to
  Reference reference;
};

/// Runs body(strategy tag) for each strategy; use as `for_each_strategy([]<class S>() {...})`.
template <class Body>
void for_each_strategy(Body&& body) {
  body.template operator()<ts::Replicate>();
  body.template operator()<ts::Zero1>();
  body.template operator()<ts::Zero2>();
  body.template operator()<ts::Zero3<>>();
  body.template operator()<Keep>();
  body.template operator()<ts::ByBudget>();
}

/// The message of the Error that `body` throws; fails the test if it throws none.
template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const ts::Error& error) {
    return error.what();
  }
  FAIL_CHECK("no tessera::Error was thrown");
  return "";
}
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
// The text is evaluated once: doctest would do so again while it reports, and a check that fails
// within a report waits for itself.
#define CHECK_SAYS(text, part)                                        \
  do {                                                                \
    const std::string said_text(text);                                \
    CHECK_MESSAGE(engine_test::contains(said_text, part), said_text); \
  } while (false)

/// A line of the plan's memory by its name.
inline std::uint64_t line(const ts::Plan& plan, std::string_view what) {
  for (const ts::PlanLine& each : plan.memory) {
    if (each.what == what) return each.bytes;
  }
  FAIL_CHECK("the plan has no line " << what);
  return 0;
}

inline std::uint64_t count_of(const ts::StepReport& report, ts::CollectiveKind kind) {
  return report.collectives[kind].count;
}
inline std::uint64_t gathers(const ts::StepReport& report) {
  return count_of(report, ts::CollectiveKind::all_gather);
}
inline std::uint64_t reductions(const ts::StepReport& report) {
  return count_of(report, ts::CollectiveKind::reduce_scatter);
}

/// "gather 0", "reduce 1", ... in the order in which they were enqueued, of the events whose name
/// is in `names`, from event `from` on.
inline std::vector<std::string> events(const std::vector<ts::TraceEvent>& trace,
                                       std::initializer_list<std::string_view> names,
                                       std::size_t from = 0) {
  std::vector<std::string> list;
  for (std::size_t i = from; i < trace.size(); ++i) {
    if (std::find(names.begin(), names.end(), trace[i].name) == names.end()) continue;
    list.push_back(trace[i].name + " " + trace[i].unit);
  }
  return list;
}
using Strings = std::vector<std::string>;

}  // namespace engine_test
