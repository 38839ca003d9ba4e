// What happens at each event of an order of leases: which gathers are issued, where every slot
// lies, when buckets are reduced. Computed once an order, by running the engine's rules without
// the memory; the planner takes its numbers from the same table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/engine/options.hpp"
#include "tessera/engine/order.hpp"
#include "tessera/engine/placement.hpp"

namespace tessera::engine {

/// What the schedule needs to know of a unit.
struct UnitFacts {
  std::uint64_t full_bytes = 0;      ///< of its full parameter buffer
  std::uint64_t gradient_bytes = 0;  ///< of its full gradient buffer
  Reshard reshard = Reshard::never;
  bool parameter_slot = false;  ///< the full parameter buffer is a slot
  bool gradient_slot = false;   ///< the full gradient buffer is a slot
  /// The full gradient buffer is the array of reduced gradients: there is nothing to reduce.
  bool gradients_in_place = false;
  bool trainable = false;  ///< holds a trainable tensor with elements
  bool outer = false;      ///< UnitOptions::outer
};

/// The depths in force: Options as the schedule (overlapped or sequential) reads them.
struct Depths {
  int prefetch = 0;
  std::uint64_t prefetch_bytes = 0;
  int reductions = 0;
  std::uint64_t bucket_bytes = 0;

  static Depths of(const Options& options) {
    if (options.schedule == Schedule::sequential) return {0, 0, 0, options.bucket_bytes};
    return {options.prefetch_depth, options.prefetch_bytes, options.reductions_in_flight,
            options.bucket_bytes};
  }
};

/// Which closed units wait to be reduced in one collective. The engine and the schedule share it,
/// so that both close a bucket at the same point of the program.
class Bucket {
 public:
  explicit Bucket(std::uint64_t limit) : limit_(limit) {}

  const std::vector<std::uint32_t>& units() const { return units_; }
  bool empty() const { return units_.empty(); }
  bool holds(std::uint32_t unit) const {
    return std::find(units_.begin(), units_.end(), unit) != units_.end();
  }
  /// Whether a unit of `bytes` still fits beside what is waiting.
  bool has_room_for(std::uint64_t bytes) const { return empty() || bytes_ + bytes <= limit_; }
  void add(std::uint32_t unit, std::uint64_t bytes) {
    units_.push_back(unit);
    bytes_ += bytes;
  }
  bool full() const { return bytes_ >= limit_; }
  void clear() {
    units_.clear();
    bytes_ = 0;
  }

 private:
  std::uint64_t limit_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> units_;
};

/// A collective that gathers these units' parameters, and the slots they go to.
struct GatherIssue {
  std::vector<std::uint32_t> units;
  std::vector<std::uint64_t> offsets;  ///< in the slot arena; kNoSlot for persistent buffers
};
inline constexpr std::uint64_t kNoSlot = static_cast<std::uint64_t>(-1);

struct EventPlan {
  std::vector<GatherIssue> gathers;
  std::uint64_t gradient_offset = kNoSlot;  ///< of the unit opened for backward
};

struct ScheduleTable {
  std::vector<EventPlan> events;  ///< one an event of the order
  std::uint64_t arena_bytes = 0;
  std::uint64_t most_used_bytes = 0;                   ///< of the arena, at any one time
  int reductions_in_flight = 0;                        ///< the slots count on no more
  std::vector<std::vector<std::uint32_t>> gathers;     ///< units of each gather, in order
  std::vector<std::vector<std::uint32_t>> reductions;  ///< units of each reduction, in order
};

/// Runs the rules over one order.
class Scheduler {
 public:
  Scheduler(const std::vector<UnitFacts>& facts, const Depths& depths)
      : facts_(facts), depths_(depths), bucket_(depths.bucket_bytes), units_(facts.size()) {}

  ScheduleTable run(const Order& order) {
    order_ = &order;
    table_.events.resize(order.size());
    for (std::size_t e = 0; e < order.size(); ++e) {
      now_ = 2 * e;  // what ends at an event ends before what begins at it
      if (order[e].open) {
        open(e);
      } else {
        close(e);
      }
    }
    finish();
    return std::move(table_);
  }

 private:
  struct UnitState {
    bool valid = false;
    int leases = 0;
    int backward_leases = 0;
    std::size_t parameters = kNowhere;  ///< index of its live slot in lifetimes_
    std::size_t gradients = kNowhere;
    bool reduces = false;
  };
  struct Target {  // where a slot's offset is to be written once it is known
    std::size_t lifetime;
    std::size_t event;
    std::size_t gather;  // kNowhere: a gradient
    std::size_t unit;    // place within the gather
  };

  bool needs_gather(const LeaseEvent& event) const {
    const UnitFacts& facts = facts_[event.unit];
    return event.open && event.parameters && facts.reshard != Reshard::never &&
           facts.full_bytes > 0 && !units_[event.unit].valid;
  }

  // Outer units lie at the arena's beginning: then, whatever a program leases inside them, expected
  // or not, the rest of the arena is in one piece.
  std::size_t begin_lifetime(std::uint64_t bytes, bool outer) {
    lifetimes_.push_back({bytes, now_ + 1, 0, 0, outer});
    return lifetimes_.size() - 1;
  }
  void end_lifetime(std::size_t& index) {
    if (index != kNowhere) lifetimes_[index].death = now_ + 0;
    index = kNowhere;
  }

  // Gathers the unit leased at `first`, and with it what follows while the bucket has room.
  void issue(std::size_t at, std::size_t first) {
    GatherIssue gather;
    std::uint64_t bytes = 0;
    for (std::size_t e = first; e < order_->size(); ++e) {
      const LeaseEvent& event = (*order_)[e];
      if (!needs_gather(event)) continue;
      const UnitFacts& facts = facts_[event.unit];
      if (!gather.units.empty() && bytes + facts.full_bytes > depths_.bucket_bytes) break;
      bytes += facts.full_bytes;
      units_[event.unit].valid = true;
      if (facts.parameter_slot) {
        units_[event.unit].parameters = begin_lifetime(facts.full_bytes, facts.outer);
        targets_.push_back({units_[event.unit].parameters, at, table_.events[at].gathers.size(),
                            gather.units.size()});
      }
      gather.units.push_back(event.unit);
      gather.offsets.push_back(kNoSlot);
      if (bytes >= depths_.bucket_bytes) break;
    }
    table_.gathers.push_back(gather.units);
    table_.events[at].gathers.push_back(std::move(gather));
  }

  void look_ahead(std::size_t at) {
    int ahead = 0;
    std::uint64_t bytes = 0;
    for (std::size_t e = at + 1; e < order_->size() && ahead < depths_.prefetch; ++e) {
      const LeaseEvent& event = (*order_)[e];
      if (!event.open || !event.parameters) continue;
      ++ahead;
      bytes += facts_[event.unit].full_bytes;
      if (bytes > depths_.prefetch_bytes) return;
      if (needs_gather(event)) issue(at, e);
    }
  }

  void open(std::size_t at) {
    const LeaseEvent& event = (*order_)[at];
    UnitState& unit = units_[event.unit];
    const UnitFacts& facts = facts_[event.unit];
    if (event.phase == Phase::forward || bucket_.holds(event.unit)) flush();
    while (event.phase == Phase::forward && !in_flight_.empty()) retire();
    if (needs_gather(event)) issue(at, at);
    ++unit.leases;
    if (event.phase == Phase::backward && unit.backward_leases++ == 0 && facts.trainable) {
      unit.reduces = false;
      while (in_flight_.size() > static_cast<std::size_t>(depths_.reductions)) retire();
      if (facts.gradient_slot) {
        unit.gradients = begin_lifetime(facts.gradient_bytes, facts.outer);
        targets_.push_back({unit.gradients, at, kNowhere, 0});
      }
    }
    look_ahead(at);
  }

  void close(std::size_t at) {
    const LeaseEvent& event = (*order_)[at];
    UnitState& unit = units_[event.unit];
    const UnitFacts& facts = facts_[event.unit];
    if (event.phase == Phase::backward) {
      unit.reduces = unit.reduces || event.reduces;
      const bool last = --unit.backward_leases == 0;
      if (last && facts.trainable && unit.reduces && !facts.gradients_in_place) {
        if (!bucket_.has_room_for(facts.gradient_bytes)) flush();
        bucket_.add(event.unit, facts.gradient_bytes);
        if (bucket_.full()) flush();
      }
    }
    if (--unit.leases == 0 && reshards_at(facts.reshard, event.phase)) {
      unit.valid = false;
      end_lifetime(unit.parameters);
    }
    look_ahead(at);
  }

  static bool reshards_at(Reshard rule, Phase phase) {
    return rule == Reshard::after_forward ||
           (rule == Reshard::after_backward && phase == Phase::backward);
  }

  void flush() {
    if (bucket_.empty()) return;
    table_.reductions.push_back(bucket_.units());
    std::vector<std::size_t> gradients;
    for (std::uint32_t u : bucket_.units()) {
      if (units_[u].gradients != kNowhere) gradients.push_back(units_[u].gradients);
      units_[u].gradients = kNowhere;
    }
    in_flight_.push_back(std::move(gradients));
    bucket_.clear();
  }
  void retire() {
    for (std::size_t gradients : in_flight_.front()) end_lifetime(gradients);
    in_flight_.pop_front();
  }

  void finish() {
    flush();
    now_ = 2 * order_->size();
    for (Lifetime& lifetime : lifetimes_) {
      if (lifetime.death == 0) lifetime.death = now_;
    }
    table_.arena_bytes = place(lifetimes_);
    table_.most_used_bytes = most_alive(lifetimes_);
    table_.reductions_in_flight = depths_.reductions;
    for (const Target& target : targets_) {
      EventPlan& event = table_.events[target.event];
      const std::uint64_t offset = lifetimes_[target.lifetime].offset;
      if (target.gather == kNowhere) {
        event.gradient_offset = offset;
      } else {
        event.gathers[target.gather].offsets[target.unit] = offset;
      }
    }
  }

  const std::vector<UnitFacts>& facts_;
  const Depths depths_;
  const Order* order_ = nullptr;
  std::uint64_t now_ = 0;
  Bucket bucket_;
  std::vector<UnitState> units_;
  std::vector<Lifetime> lifetimes_;
  std::vector<Target> targets_;
  std::deque<std::vector<std::size_t>> in_flight_;
  ScheduleTable table_;
};

}  // namespace tessera::engine
