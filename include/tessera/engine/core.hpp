// The engine: leases open and close, steps end. Not a template of the policies: shard.hpp puts the
// typed shell around it.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/gather.hpp"
#include "tessera/engine/materialize.hpp"
#include "tessera/engine/order.hpp"
#include "tessera/engine/reduce.hpp"
#include "tessera/engine/states.hpp"
#include "tessera/engine/step.hpp"
#include "tessera/engine/update_rule.hpp"

namespace tessera::engine {

template <Backend Bk>
class Core {
 public:
  using B = typename Bk::Runtime;

  Core(Mesh<Bk> mesh, const PolicyDescription& policy, Options options,
       std::unique_ptr<UpdateRule<B>> rule, float learning_rate)
      : rule_((options.validate(), std::move(rule))),
        c_(mesh, policy, std::move(options), rule_->moment_count()),
        states_(c_),
        materializing_(c_, states_),
        gathering_(c_),
        reducing_(c_),
        stepping_(c_, gathering_, *rule_),
        learning_rate_(learning_rate),
        exceptions_(std::uncaught_exceptions()) {}

  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  ~Core() {
    // Left by an exception: the other ranks must not wait for this one.
    if (std::uncaught_exceptions() > exceptions_) abort("its Shard was left by an exception");
    c_.backend.synchronize(c_.gathering());
    c_.backend.synchronize(c_.reducing());
    // The tensors are left alone: outside leases they point at null already, and a trainer may
    // well have destroyed them first.
    if (c_.materialized) c_.backend.release(c_.memory, c_.map.total);
  }

  Context<Bk>& context() { return c_; }
  const Context<Bk>& context() const { return c_; }
  Materializing<Bk>& materializing() { return materializing_; }
  States<Bk>& states() { return states_; }
  Reducing<Bk>& reducing() { return reducing_; }
  const UpdateRule<B>& rule() const { return *rule_; }

  void set_learning_rate(float rate) {
    if (!detail::is_non_negative(rate)) {
      detail::fail("tessera: the learning rate must be finite and not negative, not ", rate);
    }
    learning_rate_ = rate;
  }

  /// After materialize: the expected orders and their schedules.
  void start() {
    training_.expect(expected_training_order(c_.registry));
    evaluation_.expect(expected_evaluation_order(c_.registry));
    plan_training();
    evaluation_table_ = schedule(evaluation_.expected());
    last_counts_ = counts();
    last_end_ = c_.backend.now_ns();
    c_.backend.check();
  }

  void open(std::uint32_t u, Phase phase, bool parameters) {
    const Enqueue timed(*this);
    require_materialized();
    c_.check();
    if (phase == Phase::backward && c_.evaluating) {
      detail::fail("tessera: backward() of unit '", c_.registry.unit(u).name,
                   "' inside evaluate(): end the evaluation first");
    }
    if (phase == Phase::backward && c_.accumulating && c_.facts[u].gradient_slot &&
        c_.facts[u].trainable) {
      detail::fail(
          "tessera: accumulate() with sharded gradients needs full gradient buffers: set "
          "Options::accumulation to Accumulation::reduce_once");
    }
    seek(u, phase, parameters);
    const auto& borrowed = c_.registry.unit(u).borrowed_units;
    std::size_t opened = 0;
    try {
      for (; opened < borrowed.size(); ++opened) open_one(borrowed[opened], phase, parameters);
      open_one(u, phase, parameters);
    } catch (...) {
      if (opened == borrowed.size()) release(u, phase);
      for (std::size_t i = 0; i < borrowed.size() && i <= opened; ++i) release(borrowed[i], phase);
      throw;
    }
  }

  void close(std::uint32_t u, Phase phase, bool parameters) {
    const Enqueue timed(*this);
    if (!c_.broken.empty()) {
      release(u, phase);
      for (std::uint32_t owner : c_.registry.unit(u).borrowed_units) release(owner, phase);
      c_.check();
    }
    close_one(u, phase, parameters);
    const auto& borrowed = c_.registry.unit(u).borrowed_units;
    for (std::size_t i = borrowed.size(); i-- > 0;) close_one(borrowed[i], phase, parameters);
    c_.check();
  }

  /// A lease that is left by an exception: nothing is sent, the others fail at once.
  void abandon(std::uint32_t u, Phase phase) noexcept {
    abort("an exception left a lease of unit '" + c_.registry.unit(u).name + "'");
    release(u, phase);
    for (std::uint32_t owner : c_.registry.unit(u).borrowed_units) release(owner, phase);
  }

  StepReport step() {
    const Enqueue timed(*this);
    require_materialized();
    c_.check();
    check_step();
    reducing_.flush();
    quiesce();
    StepReport report;
    stepping_.run(learning_rate_, report);
    reducing_.retire_all();
    if (!report.skipped) ++steps_;
    if (training_.deviated() && !training_.recorded().empty()) {
      report.order_changed = true;
      training_.expect(training_.recorded());
      plan_training();
    } else {
      training_.restart();
    }
    complete(report);
    return report;
  }

  /// Gradients held unreduced are reduced now. Collective.
  void reduce_gradients() {
    const Enqueue timed(*this);
    require_materialized();
    c_.check();
    reducing_.reduce_held();
  }

  /// Gives a unit's gathered parameters back ahead of its rule.
  void reshard(std::uint32_t u) {
    if (c_.units[u].leases > 0) {
      detail::fail("tessera: reshard() of unit '", c_.registry.unit(u).name,
                   "' while a lease of it is open");
    }
    gathering_.reshard(u);
  }

  void begin_accumulation() {
    if (c_.accumulating) detail::fail("tessera: accumulate() inside accumulate()");
    c_.accumulating = true;
  }
  void end_accumulation() { c_.accumulating = false; }

  void begin_evaluation() {
    if (c_.evaluating) detail::fail("tessera: evaluate() inside evaluate()");
    require_no_lease("evaluate()");
    quiesce();
    c_.evaluating = true;
    evaluation_.restart();
    records_before_evaluation_ = c_.recorder.count();
  }
  void end_evaluation() noexcept {
    c_.evaluating = false;
    try {
      quiesce();
      c_.backend.synchronize(c_.gathering());
      c_.recorder.truncate(records_before_evaluation_);
    } catch (const std::exception& error) {
      c_.broken = error.what();
    }
  }

  /// Sets a tensor's full values; what is gathered of its unit is stale then.
  void set_full(State state, const TensorRecord& tensor, std::span<const float> values) {
    require_materialized();
    if (c_.units[tensor.unit].leases > 0) {
      detail::fail("tessera: set_full() of '", tensor.info.name,
                   "' while a lease of its unit is open");
    }
    quiesce();
    states_.set_full(state, tensor, values);
    gathering_.reshard(tensor.unit);
  }

  /// Nothing is gathered ahead any more, on any rank.
  void quiesce() {
    gathering_.forget_issued();
    gathering_.drop_prefetched();
    // The other ranks may still read this one's piece in a gather that nobody waited for.
    c_.backend.record(quiet_, c_.gathering());
    c_.backend.wait(c_.compute(), quiet_);
  }

  void abort(const std::string& reason) noexcept {
    try {
      const std::string why = "rank " + std::to_string(c_.rank()) + ": " + reason;
      if (c_.broken.empty()) c_.broken = why;
      c_.control.abort(why);
    } catch (...) {  // out of memory for a message: the time-out serves the others
    }
  }

  /// Collective: after a failure, back to the state of the last step. Leases must have ended.
  void reset() {
    c_.backend.synchronize(c_.gathering());
    c_.backend.synchronize(c_.reducing());
    c_.backend.reset();
    c_.control.reset();
    c_.broken.clear();
    c_.broken_elsewhere = false;
    c_.accumulating = c_.evaluating = false;
    gathering_.forget_issued();
    gathering_.drop_prefetched();
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) gathering_.reshard(u);
    reducing_.forget();
    c_.recorder.truncate(0);
    training_.restart();
    last_counts_ = counts();
    last_end_ = c_.backend.now_ns();
  }

  void require_materialized() const {
    if (c_.materialized) return;
    std::string names;
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      names += (names.empty() ? "" : ", ") + tensor.info.name;
    }
    detail::fail("tessera: materialize() has not been called: these tensors have no memory: ",
                 names);
  }

 private:
  // Host time in the library, without what compute waited for.
  class Enqueue {
   public:
    explicit Enqueue(Core& core) : core_(core), begin_(now()) {}
    ~Enqueue() { core_.enqueue_ns_ += now() - begin_; }

   private:
    Core& core_;
    std::int64_t begin_;
  };

  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  ScheduleTable schedule(const Order& order) const {
    return Planner(c_.registry, c_.policy, c_.options, c_.moments, c_.world())
        .schedule(order, c_.slot_bytes);
  }

  void plan_training() {
    training_table_ = schedule(training_.expected());
    reducing_.allow_in_flight(training_table_.reductions_in_flight);
  }

  LeaseEvent event(std::uint32_t u, Phase phase, bool open, bool parameters) const {
    return {u, phase, open, parameters, phase == Phase::forward || !c_.accumulating};
  }

  // The schedule of the order that the program is following; null where its slots have no room.
  const ScheduleTable* table() const {
    const ScheduleTable& table = c_.evaluating ? evaluation_table_ : training_table_;
    return table.arena_bytes <= c_.slot_bytes ? &table : nullptr;
  }

  // Off the expected order slots were placed for another course of the program: what does not
  // belong to open leases would lie in the way of those to come.
  void seek(std::uint32_t u, Phase phase, bool parameters) {
    opening_.clear();
    for (std::uint32_t owner : c_.registry.unit(u).borrowed_units) {
      opening_.push_back(event(owner, phase, true, parameters));
    }
    opening_.push_back(event(u, phase, true, parameters));
    OrderTracker& tracker = c_.evaluating ? evaluation_ : training_;
    if (tracker.seek(opening_, c_.evaluating) && table() != nullptr) return;
    reducing_.end_micro_step();
    gathering_.drop_prefetched(u);
  }

  const EventPlan* follow(const LeaseEvent& event) {
    OrderTracker& tracker = c_.evaluating ? evaluation_ : training_;
    const std::size_t at = tracker.on(event, c_.evaluating);
    return at == kNowhere || table() == nullptr ? nullptr : &table()->events[at];
  }

  void gather_ahead(const EventPlan* plan) {
    if (plan == nullptr) return;
    for (const GatherIssue& gather : plan->gathers) {
      gathering_.issue(gather.units, gather.offsets, false, [] { return false; });
    }
  }

  bool make_room() {
    if (gathering_.drop_prefetched()) return true;
    reducing_.flush();
    return reducing_.retire_all();
  }

  // Off the expected order the parameters may have come to lie so that the gradients no longer fit
  // beside them: then they are gathered once more, after the gradients have their place.
  bool make_room_within(std::uint32_t u) {
    return c_.units[u].leases == 1 && gathering_.take_back(u);
  }

  void open_one(std::uint32_t u, Phase phase, bool parameters) {
    UnitState<B>& unit = c_.units[u];
    const EventPlan* plan = follow(event(u, phase, true, parameters));
    if (phase == Phase::forward) reducing_.end_micro_step();
    ++unit.leases;
    const bool first_backward = phase == Phase::backward && unit.backward_leases == 0;
    if (phase == Phase::backward) ++unit.backward_leases;
    const bool needs_gradients = first_backward && c_.facts[u].trainable;
    if (needs_gradients) reducing_.make_way(u);
    if (parameters && gathering_.needed(u)) serve(u, plan);
    if (needs_gradients) {
      reducing_.open(u, plan != nullptr ? plan->gradient_offset : kNoSlot,
                     [this, u] { return make_room() || make_room_within(u); });
      if (parameters && gathering_.needed(u)) serve(u, plan);
    }
    gather_ahead(plan);
    if (parameters) {
      gathering_.wait(u);
      if (!unit.bound) bind(u);
    }
    c_.check();
    open_spans_.push_back(
        {u, phase,
         c_.recorder.begin(Span::lease, phase == Phase::forward ? "forward" : "backward",
                           c_.registry.unit(u).name, StreamKind::compute)});
  }

  // The unit is wanted now: by the schedule's first gather, if that is the one, else by itself.
  void serve(std::uint32_t u, const EventPlan* plan) {
    if (plan != nullptr && !plan->gathers.empty() && plan->gathers[0].units[0] == u) {
      gathering_.issue(plan->gathers[0].units, plan->gathers[0].offsets, true,
                       [this] { return make_room(); });
    }
    if (!gathering_.needed(u)) return;
    const std::uint64_t offset = plan != nullptr ? planned_offset(u, plan) : kNoSlot;
    gathering_.issue({&u, 1}, {&offset, 1}, true, [this] { return make_room(); });
  }

  // Where the unit would lie had it not been given back since it was gathered: that room is kept
  // free for it.
  std::uint64_t planned_offset(std::uint32_t u, const EventPlan* plan) const {
    for (const EventPlan* earlier = plan;; --earlier) {
      for (const GatherIssue& gather : earlier->gathers) {
        for (std::size_t i = 0; i < gather.units.size(); ++i) {
          if (gather.units[i] == u) return gather.offsets[i];
        }
      }
      if (earlier == table()->events.data()) return kNoSlot;
    }
  }

  void close_one(std::uint32_t u, Phase phase, bool parameters) {
    end_span(u, phase);
    UnitState<B>& unit = c_.units[u];
    const bool reduces = phase == Phase::forward || !c_.accumulating;
    const EventPlan* plan = follow(event(u, phase, false, parameters));
    if (phase == Phase::backward) {
      unit.reduces = unit.reduces || reduces;
      if (--unit.backward_leases == 0 && c_.facts[u].trainable) reducing_.close(u);
    }
    if (--unit.leases == 0) {
      unbind(u);
      const Reshard rule = c_.facts[u].reshard;
      if (rule == Reshard::after_forward ||
          (rule == Reshard::after_backward && phase == Phase::backward)) {
        gathering_.reshard(u);
      }
    }
    gather_ahead(plan);
  }

  void release(std::uint32_t u, Phase phase) noexcept {
    UnitState<B>& unit = c_.units[u];
    if (phase == Phase::backward && unit.backward_leases > 0) --unit.backward_leases;
    if (unit.leases > 0 && --unit.leases == 0) unbind(u);
    for (std::size_t i = open_spans_.size(); i-- > 0;) {
      if (open_spans_[i].unit != u) continue;
      open_spans_.erase(open_spans_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }

  void end_span(std::uint32_t u, Phase phase) {
    for (std::size_t i = open_spans_.size(); i-- > 0;) {
      if (open_spans_[i].unit != u || open_spans_[i].phase != phase) continue;
      c_.recorder.end(open_spans_[i].span);
      open_spans_.erase(open_spans_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  void bind(std::uint32_t u) {
    const layout::UnitLayout& at = c_.layout(u);
    for (std::uint32_t id : c_.registry.unit(u).tensors) {
      const TensorRecord& tensor = c_.registry.tensor(id);
      const std::uint64_t width = size_of(tensor.info.dtype);
      std::byte* data = tensor.elements == 0
                            ? nullptr
                            : c_.units[u].parameters + at.full_offset(tensor.placement.group) +
                                  tensor.placement.offset * width;
      if (tensor.handle.rebindable()) {
        tensor.handle.rebind(data);
      } else {
        tensor.handle.require_same_size(tensor.info.name);
        c_.backend.copy(c_.compute(), tensor.handle.data(), data, tensor.elements * width);
      }
    }
    c_.units[u].bound = true;
  }

  void unbind(std::uint32_t u) {
    if (!c_.units[u].bound) return;
    for (std::uint32_t id : c_.registry.unit(u).tensors) {
      const TensorRecord& tensor = c_.registry.tensor(id);
      if (tensor.handle.rebindable()) tensor.handle.rebind(nullptr);
    }
    c_.units[u].bound = false;
  }

  void require_no_lease(const char* what) const {
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (c_.units[u].leases == 0) continue;
      detail::fail("tessera: ", what, " while a lease of unit '", c_.registry.unit(u).name,
                   "' is open");
    }
  }

  void check_step() const {
    require_no_lease("step()");
    if (c_.accumulating) {
      detail::fail("tessera: step() inside accumulate(): end the accumulation first");
    }
    if (c_.evaluating) detail::fail("tessera: step() inside evaluate(): end the evaluation first");
    if (const std::string* name = reducing_.unreduced()) {
      detail::fail("tessera: step(): unit '", *name,
                   "' holds gradients that were not reduced: run the last backward outside "
                   "accumulate(), or call reduce_gradients()");
    }
  }

  CollectiveCounts counts() const {
    CollectiveCounts sum = c_.gather_comm.counts();
    sum += c_.reduce_comm.counts();
    return sum;
  }

  void complete(StepReport& report) {
    c_.backend.synchronize(c_.gathering());
    c_.backend.synchronize(c_.reducing());
    c_.backend.synchronize(c_.compute());
    c_.check();
    report.step = steps_;
    report.learning_rate = learning_rate_;
    c_.recorder.resolve(report);
    const CollectiveCounts all = counts();
    report.collectives = all;
    report.collectives -= last_counts_;
    last_counts_ = all;
    report.peak_bytes = c_.peak_bytes;
    const std::int64_t end = c_.backend.now_ns();
    report.step_ms = static_cast<double>(end - last_end_) / 1e6;
    report.host_enqueue_us =
        std::max(0.0, static_cast<double>(enqueue_ns_) / 1e3 - report.exposed_ms * 1e3);
    enqueue_ns_ = 0;
    last_end_ = end;
  }

  struct OpenSpan {
    std::uint32_t unit;
    Phase phase;
    std::size_t span;
  };

  std::unique_ptr<UpdateRule<B>> rule_;
  Context<Bk> c_;
  States<Bk> states_;
  Materializing<Bk> materializing_;
  Gathering<Bk> gathering_;
  Reducing<Bk> reducing_;
  Stepping<Bk> stepping_;
  OrderTracker training_;
  OrderTracker evaluation_;
  ScheduleTable training_table_;
  ScheduleTable evaluation_table_;
  std::vector<OpenSpan> open_spans_;
  std::vector<LeaseEvent> opening_;
  typename B::Event quiet_;
  float learning_rate_;
  std::uint64_t steps_ = 0;
  CollectiveCounts last_counts_;
  std::int64_t last_end_ = 0;
  std::int64_t enqueue_ns_ = 0;
  std::size_t records_before_evaluation_ = 0;
  int exceptions_;
};

}  // namespace tessera::engine
