// Leases: units open and close in the order the program gives, and gathers and reductions follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/gather.hpp"
#include "tessera/engine/order.hpp"
#include "tessera/engine/planner.hpp"
#include "tessera/engine/reduce.hpp"
#include "tessera/engine/schedule.hpp"

namespace tessera::engine {

template <Backend Bk>
class Leases {
 public:
  using B = typename Bk::Runtime;

  Leases(Context<Bk>& context, Gathering<Bk>& gathering, Reducing<Bk>& reducing)
      : c_(context), gathering_(gathering), reducing_(reducing) {}

  /// After materialize: the expected orders and their schedules.
  void start() {
    training_.expect(expected_training_order(c_.registry));
    evaluation_.expect(expected_evaluation_order(c_.registry));
    plan_training();
    evaluation_table_ = schedule(evaluation_.expected());
  }

  /// Throws Error where a lease has no place here: every rank is told so alike, and nothing has
  /// been changed.
  void require_place(std::uint32_t u, Phase phase) const {
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
  }

  /// Opens a lease of the unit, and of those it shares tensors with. Where that fails no tensor is
  /// left pointing into a buffer, but the order and the collectives are no longer the other ranks'.
  void open(std::uint32_t u, Phase phase, bool parameters) {
    seek(u, phase, parameters);
    const auto& borrowed = c_.registry.unit(u).borrowed_units;
    std::size_t opened = 0;
    try {
      for (; opened < borrowed.size(); ++opened) open_one(borrowed[opened], phase, parameters);
      open_one(u, phase, parameters);
    } catch (...) {
      if (opened == borrowed.size()) release_one(u, phase);
      for (std::size_t i = 0; i < borrowed.size() && i <= opened; ++i) {
        release_one(borrowed[i], phase);
      }
      throw;
    }
  }

  void close(std::uint32_t u, Phase phase, bool parameters) {
    if (!c_.broken.empty()) {
      release(u, phase);
      c_.check();
    }
    close_one(u, phase, parameters);
    const auto& borrowed = c_.registry.unit(u).borrowed_units;
    for (std::size_t i = borrowed.size(); i-- > 0;) close_one(borrowed[i], phase, parameters);
    c_.check();
  }

  /// Ends a lease without doing what its end would: nothing is sent.
  void release(std::uint32_t u, Phase phase) noexcept {
    release_one(u, phase);
    for (std::uint32_t owner : c_.registry.unit(u).borrowed_units) release_one(owner, phase);
  }

  /// The step is over: what it did is expected of the next. True if that is a new order.
  bool end_step() {
    if (!training_.deviated() || training_.recorded().empty()) {
      training_.restart();
      return false;
    }
    training_.expect(training_.recorded());
    plan_training();
    return true;
  }

  void begin_evaluation() {
    quiesce();
    c_.evaluating = true;
    evaluation_.restart();
  }
  void end_evaluation() {
    c_.evaluating = false;
    quiesce();
  }

  /// What the failed step recorded is forgotten.
  void restart() { training_.restart(); }

  /// Nothing is gathered ahead any more, on any rank.
  void quiesce() {
    gathering_.forget_issued();
    gathering_.drop_prefetched();
    // The other ranks may still read this one's piece in a gather that nobody waited for.
    c_.backend.record(quiet_, c_.gathering());
    c_.backend.wait(c_.compute(), quiet_);
  }

  /// Throws Error, naming the unit, if a lease is open.
  void require_none(const char* what) const {
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (c_.units[u].leases == 0) continue;
      detail::fail("tessera: ", what, " while a lease of unit '", c_.registry.unit(u).name,
                   "' is open");
    }
  }

 private:
  struct OpenSpan {
    std::uint32_t unit;
    Phase phase;
    std::size_t span;
    std::uint64_t annotation;
  };

  ScheduleTable schedule(const Order& order) const {
    return Planner(c_.registry, c_.policy, c_.options, c_.needs, c_.mesh_shape)
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
    ++unit.leases;  // first: release_one takes it back wherever this fails
    const bool first_backward = phase == Phase::backward && unit.backward_leases == 0;
    if (phase == Phase::backward) ++unit.backward_leases;
    const EventPlan* plan = follow(event(u, phase, true, parameters));
    if (phase == Phase::forward) reducing_.end_micro_step();
    const bool needs_gradients = first_backward && c_.facts[u].trainable;
    c_.recorder.begin_opening();
    if (needs_gradients) reducing_.make_way(u);
    if (parameters && gathering_.needed(u)) serve(u, plan);
    if (needs_gradients) {
      reducing_.open(u, plan != nullptr ? plan->gradient_offset : kNoSlot,
                     [this, u] { return make_room() || make_room_within(u); });
      if (parameters && gathering_.needed(u)) serve(u, plan);
    }
    gather_ahead(plan);
    if (parameters) gathering_.wait(u);
    c_.check();
    open_spans_.push_back(
        {u, phase,
         c_.recorder.begin(Span::lease, phase == Phase::forward ? "forward" : "backward",
                           c_.registry.unit(u).name, StreamKind::compute),
         c_.backend.begin_annotation(c_.registry.unit(u).name.c_str(),
                                     static_cast<std::uint32_t>(phase))});
    c_.recorder.end_opening();
    if (parameters && !unit.bound) bind(u);
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

  void end_span(std::uint32_t u, Phase phase) {
    for (std::size_t i = open_spans_.size(); i-- > 0;) {
      if (open_spans_[i].unit != u || open_spans_[i].phase != phase) continue;
      c_.recorder.end(open_spans_[i].span);
      c_.backend.end_annotation(open_spans_[i].annotation);
      open_spans_.erase(open_spans_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  void bind(std::uint32_t u) {
    const layout::UnitLayout& at = c_.layout(u);
    c_.units[u].bound = true;  // before it is: what fails half-way is to be undone
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
  }

  // Every tensor, even where the user's rebind throws for one.
  void unbind(std::uint32_t u) {
    if (!std::exchange(c_.units[u].bound, false)) return;
    std::exception_ptr failure;
    for (std::uint32_t id : c_.registry.unit(u).tensors) {
      const TensorRecord& tensor = c_.registry.tensor(id);
      try {
        if (tensor.handle.rebindable()) tensor.handle.rebind(nullptr);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

  void release_one(std::uint32_t u, Phase phase) noexcept {
    UnitState<B>& unit = c_.units[u];
    if (phase == Phase::backward && unit.backward_leases > 0) --unit.backward_leases;
    try {
      if (unit.leases > 0 && --unit.leases == 0) unbind(u);
    } catch (...) {  // the failure that led here is the one to tell
    }
    for (std::size_t i = open_spans_.size(); i-- > 0;) {
      if (open_spans_[i].unit != u || open_spans_[i].phase != phase) continue;
      c_.backend.end_annotation(open_spans_[i].annotation);
      open_spans_.erase(open_spans_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }

  Context<Bk>& c_;
  Gathering<Bk>& gathering_;
  Reducing<Bk>& reducing_;
  OrderTracker training_;
  OrderTracker evaluation_;
  ScheduleTable training_table_;
  ScheduleTable evaluation_table_;
  std::vector<OpenSpan> open_spans_;
  std::vector<LeaseEvent> opening_;
  typename B::Event quiet_;
};

}  // namespace tessera::engine
