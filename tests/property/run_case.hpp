#pragma once
// Runs a case, a thread a rank, and compares everything that shows with the reference.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "property/model.hpp"
#include "support/allocation_counter.hpp"

namespace property {

/// The library and the reference differ; the message says where.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void differ(const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);
  (text << ... << parts);
  throw Mismatch(text.str());
}

/// What a rank found out that only a look at all ranks can judge.
struct RankResult {
  std::uint64_t planned = 0;
  std::uint64_t parameters_digest = 0;
  std::uint64_t moments_digest = 0;
};

class RankRun {
 public:
  RankRun(const Case& c, const Expected& expected, const under_test::Ranks& communicator)
      : c_(c), expected_(expected), rank_(communicator.rank()), tensors_(c.tensors.size()) {
    const under_test::RuntimeOptions host{.poison = c.poison,
                                          .jitter = std::chrono::microseconds(c.jitter_us),
                                          .jitter_seed = mix(c.seed, rank_)};
    model_ = make_model(c, tessera::Mesh<under_test::Backend>(communicator, host));
  }

  RankResult run() {
    register_units();
    const allocation_counter::Count before = allocation_counter::of_this_thread();
    model_->materialize(c_);
    plan_ = model_->plan();
    const std::uint64_t total = plan_.total_bytes();
    const allocation_counter::Count took = allocation_counter::of_this_thread() - before;
    if (took != allocation_counter::Count{total > 0 ? 1u : 0u, total}) {
      differ("planned ", total, " bytes, allocated ", took.bytes, " in ", took.calls, " calls");
    }
    for (step_ = 0; step_ < c_.steps; ++step_) run_step();
    check_end();
    RankResult result;
    std::tie(result.parameters_digest, result.moments_digest) = model_->digests();
    result.planned = total;
    model_.reset();
    const allocation_counter::Count left =
        under_test::kOnDevice ? allocation_counter::Count{} : took;
    if (allocation_counter::of_this_thread() - before != left) {
      differ("tensor memory was allocated after materialize");
    }
    return result;
  }

 private:
  const ExpectedStep& now() const { return expected_.steps[static_cast<std::size_t>(step_)]; }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  std::string tensor_name(int t) const {
    return "tensor " + std::to_string(t) + " of unit " + std::to_string(c_.owner(t));
  }

  void register_units() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const TensorSpec& spec = c_.tensors[t];
      const bool filled = c_.initial == Initial::from_tensors ||
                          (c_.initial == Initial::from_rank && rank_ == c_.world / 2) ||
                          (c_.initial == Initial::function && !spec.is_float());
      set_up(c_, tensors_[t], spec, filled);
    }
    for (std::size_t u = 0; u < c_.units.size(); ++u) {
      TensorList list;
      for (int t : c_.units[u].tensors) list.tensors.push_back(&tensors_[at(t)]);
      units_.push_back(model_->add_unit("unit" + std::to_string(u), c_.units[u].options, list));
    }
    infos_ = model_->tensors();
    if (infos_.size() != tensors_.size()) {
      differ(infos_.size(), " tensors registered of ", tensors_.size());
    }
  }

  void run_step() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!is_set(c_, c_.tensors[t], step_)) continue;
      std::vector<float> values(c_.tensors[t].elements());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = set_value(c_, c_.tensors[t], i);
      model_->set_full(infos_[t], values);
    }
    for (const Action& action : program(c_, step_)) perform(action);
    if (c_.reads_gradients) check_gradients();
    model_->set_learning_rate(rate_of(c_, step_));
    check_report(model_->step());
    for (RankTensor& tensor : tensors_) {
      if (tensor.spec.form != Form::vector && tensor.data() != nullptr) {
        differ("step ", step_, ": a tensor points at memory outside leases");
      }
    }
  }

  struct Open {
    int unit;
    std::unique_ptr<OpenLease> lease;
  };

  void perform(const Action& action) {
    switch (action.kind) {
      case Action::Kind::forward:
        open_.push_back({action.unit, model_->forward(units_[at(action.unit)])});
        check_weights(action.unit, "forward");
        break;
      case Action::Kind::backward:
        open_.push_back(
            {action.unit, model_->backward(units_[at(action.unit)], action.gradients_only)});
        if (!action.gradients_only) check_weights(action.unit, "backward");
        write_gradients(action);
        break;
      case Action::Kind::close: {
        std::size_t i = open_.size() - 1;
        while (open_[i].unit != action.unit) --i;
        open_[i].lease->close();
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
      case Action::Kind::begin_accumulate: scope_ = model_->accumulate(); break;
      case Action::Kind::begin_evaluate: scope_ = model_->evaluate(); break;
      case Action::Kind::end_accumulate:
      case Action::Kind::end_evaluate: scope_.reset(); break;
      case Action::Kind::reduce: model_->reduce_gradients(); break;
      case Action::Kind::reshard: model_->reshard(units_[at(action.unit)]); break;
    }
  }

  void check_weights(int unit, const char* lease) {
    for (int t : c_.units[at(unit)].tensors) {
      RankTensor& tensor = tensors_[at(t)];
      const Bytes& wanted = now().weights[at(t)];
      const void* data = tensor.data();
      if (wanted.empty()) {
        if (data != nullptr && tensor.spec.form != Form::vector) {
          differ("step ", step_, ": ", tensor_name(t), " has no elements and is not null");
        }
        continue;
      }
      if (data == nullptr ||
          under_test::read(static_cast<const unsigned char*>(data), wanted.size()) != wanted) {
        differ("step ", step_, ": wrong weights of ", tensor_name(t), " in a ", lease,
               " lease of unit ", unit);
      }
    }
  }

  void write_gradients(const Action& action) {
    std::vector<int> tensors = c_.units[at(action.unit)].tensors;
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    for (int t : tensors) {
      RankTensor& tensor = tensors_[at(t)];
      if (!tensor.spec.trainable) continue;
      const int times = times_asked(c_, step_, rank_, action.lease, tensor.spec);
      for (int time = 0; time < times; ++time) {
        const Buffer buffer = open_.back().lease->gradient(tensor);
        if (buffer.size != tensor.spec.elements() ||
            (buffer.data == nullptr) != (buffer.size == 0)) {
          differ("step ", step_, ": the gradient buffer of ", tensor_name(t), " has ", buffer.size,
                 " elements");
        }
        const GradientSource source(c_, step_, rank_, action.lease, tensor.spec, time);
        const bool sees = !action.gradients_only;
        if (tensor.spec.type == Type::f32) {
          const auto weights = weights_of<float>(tensor, sees);
          write(source, buffer, [&](std::size_t i) { return sees ? weights[i] : 0.0f; });
        } else {
          const auto weights = weights_of<tessera::bf16>(tensor, sees);
          write(source, buffer,
                [&](std::size_t i) { return sees ? tessera::to_float(weights[i]) : 0.0f; });
        }
      }
    }
  }

  template <class E>
  static std::vector<E> weights_of(RankTensor& tensor, bool sees) {
    if (!sees) return {};
    return under_test::read(static_cast<const E*>(tensor.data()), tensor.spec.elements());
  }

  template <class Weight>
  static void write(const GradientSource& source, const Buffer& buffer, Weight&& weight) {
    if (buffer.is_bf16) {
      write<tessera::bf16>(source, buffer, weight);
    } else {
      write<float>(source, buffer, weight);
    }
  }
  template <class E, class Weight>
  static void write(const GradientSource& source, const Buffer& buffer, Weight&& weight) {
    E* const to = static_cast<E*>(buffer.data);
    std::vector<E> values(buffer.size);
    if (buffer.accumulate) values = under_test::read(to, buffer.size);
    for (std::size_t i = 0; i < buffer.size; ++i) {
      const float value = source.at(i, weight(i));
      if constexpr (std::is_same_v<E, float>) {
        values[i] = buffer.accumulate ? values[i] + value : value;
      } else {
        values[i] =
            tessera::to_bf16(buffer.accumulate ? tessera::to_float(values[i]) + value : value);
      }
    }
    under_test::write(to, values);
  }

  void check_gradients() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!now().reduced[t]) continue;
      compare(model_->full(tessera::State::gradient(), infos_[t]), now().gradients[t],
              static_cast<int>(t), "reduced gradient");
    }
  }

  void compare(const std::vector<float>& got, const std::vector<float>& wanted, int t,
               const char* what) {
    if (got.size() != wanted.size()) differ(what, " of ", tensor_name(t), ": wrong size");
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0) continue;
      differ("step ", step_, ": ", what, " of ", tensor_name(t), "[", i, "] is ", got[i], ", not ",
             wanted[i]);
    }
  }

  void check_report(const tessera::StepReport& report) {
    const reference::StepResult& wanted = now().result;
    if (report.skipped != wanted.skipped || report.norm != wanted.norm ||
        report.clipped_norm != wanted.clipped_norm) {
      differ("step ", step_, ": the norm is ", report.norm, " and ", report.clipped_norm,
             " clipped, not ", wanted.norm, " and ", wanted.clipped_norm,
             report.skipped ? "; skipped" : "; not skipped");
    }
    if (report.step != now().updates) {
      differ("step ", step_, ": it reports step ", report.step, ", not ", now().updates);
    }
    if (report.peak_bytes > plan_.total_bytes()) {
      differ("step ", step_, ": ", report.peak_bytes, " bytes used of ", plan_.total_bytes());
    }
    if (!c_.expected_order()) return;
    if (report.order_changed) differ("step ", step_, ": a plain order counts as a change");
    if (report.peak_bytes > plan_.most_used_bytes) {
      differ("step ", step_, ": ", report.peak_bytes, " bytes used, planned at most ",
             plan_.most_used_bytes);
    }
    if (step_ > 0 && !(report.collectives == plan_.collectives)) {
      for (int k = 0; k < tessera::kCollectiveKinds; ++k) {
        const tessera::CollectiveCount got = report.collectives.kinds[k];
        const tessera::CollectiveCount planned = plan_.collectives.kinds[k];
        if (got == planned) continue;
        differ("step ", step_, ": ", got.count, " ",
               tessera::name_of(static_cast<tessera::CollectiveKind>(k)), " of ", got.bytes,
               " bytes, planned ", planned.count, " of ", planned.bytes);
      }
    }
  }

  void check_end() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const int index = static_cast<int>(t);
      const auto bytes = model_->full_bytes(infos_[t]);
      const Bytes& wanted = expected_.weights[t];
      if (bytes.size() != wanted.size() ||
          (!bytes.empty() && std::memcmp(bytes.data(), wanted.data(), bytes.size()) != 0)) {
        differ("at the end: wrong parameter: ", tensor_name(index));
      }
      const reference::Tensor& tensor = expected_.tensors[t];
      if (!tensor.trainable) continue;
      compare(model_->full(tessera::State::master(), infos_[t]), tensor.master, index, "master");
      const int moments = c_.rule == Rule::adamw ? 2 : 1;
      for (int m = 0; m < moments; ++m) {
        compare(model_->full(tessera::State::moment(m), infos_[t]), tensor.moments[m], index,
                "moment");
      }
    }
  }

  const Case& c_;
  const Expected& expected_;
  const int rank_;
  std::deque<RankTensor> tensors_;  // they keep their addresses, and outlive the model
  std::unique_ptr<Model> model_;
  std::vector<tessera::Unit> units_;
  std::vector<tessera::TensorInfo> infos_;
  tessera::Plan plan_;
  std::unique_ptr<OpenLease> scope_;
  std::vector<Open> open_;
  int step_ = 0;
};

/// Empty, or what went wrong.
inline std::string run_case(const Case& c) {
  try {
    const Expected expected = expect(c);
    std::vector<RankResult> results(static_cast<std::size_t>(c.world));
    const allocation_counter::Count before = allocation_counter::of_process();
    under_test::run_ranks(
        c.world,
        [&](const under_test::Ranks& communicator) {
          RankRun run(c, expected, communicator);
          results[static_cast<std::size_t>(communicator.rank())] = run.run();
        },
        std::chrono::seconds(10));
    const auto took = allocation_counter::of_process() - before;
    const auto ranks = static_cast<std::uint64_t>(c.world);
    if (took.bytes != (under_test::kOnDevice ? 0 : results[0].planned * ranks)) {
      return "a side stream allocated tensor memory";
    }
    for (const RankResult& result : results) {
      if (result.parameters_digest != results[0].parameters_digest ||
          result.moments_digest != results[0].moments_digest) {
        return "the ranks' digests differ";
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace property
