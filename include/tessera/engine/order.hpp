// The order of leases: what is expected before the first step, what was recorded since, and where
// in it the program is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/engine/registry.hpp"

namespace tessera::engine {

enum class Phase : std::uint8_t { forward, backward };

/// A lease is opened or closed.
struct LeaseEvent {
  std::uint32_t unit = 0;
  Phase phase = Phase::forward;
  bool open = true;
  bool parameters = true;  ///< false: a backward lease that needs gradients only
  bool reduces = true;     ///< false: a backward lease inside accumulate()

  friend constexpr bool operator==(const LeaseEvent&, const LeaseEvent&) = default;
};

using Order = std::vector<LeaseEvent>;

inline void append_pass(Order& order, const Registry& registry, Phase phase) {
  const auto count = static_cast<std::uint32_t>(registry.units().size());
  const auto push = [&](std::uint32_t u, bool open) {
    order.push_back({u, phase, open, true, true});
  };
  for (std::uint32_t u = 0; u < count; ++u) {
    if (registry.unit(u).options.outer) push(u, true);
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t u = phase == Phase::forward ? i : count - 1 - i;
    const UnitRecord& unit = registry.unit(u);
    if (unit.options.outer) continue;
    for (std::uint32_t owner : unit.borrowed_units) push(owner, true);
    push(u, true);
    push(u, false);
    for (std::size_t b = unit.borrowed_units.size(); b-- > 0;) push(unit.borrowed_units[b], false);
  }
  for (std::uint32_t i = count; i-- > 0;) {
    if (registry.unit(i).options.outer) push(i, false);
  }
}

/// Units in the order of registration forward, then backward in the reverse of it.
inline Order expected_training_order(const Registry& registry) {
  Order order;
  append_pass(order, registry, Phase::forward);
  append_pass(order, registry, Phase::backward);
  return order;
}

inline Order expected_evaluation_order(const Registry& registry) {
  Order order;
  append_pass(order, registry, Phase::forward);
  return order;
}

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

/// Follows a program along an expected order and records what it does.
class OrderTracker {
 public:
  void expect(Order order) {
    expected_ = std::move(order);
    restart();
  }
  const Order& expected() const { return expected_; }
  const Order& recorded() const { return recorded_; }

  /// Back to the start of the order; what was recorded is dropped.
  void restart() {
    recorded_.clear();
    next_ = 0;
    following_ = true;
  }

  /// The event's place in the expected order, or kNowhere where the program deviates. An opening
  /// lease that is expected later on brings the program back on the track. `cyclic`: the order
  /// starts again at its end.
  std::size_t on(const LeaseEvent& event, bool cyclic) {
    if (!cyclic) recorded_.push_back(event);
    if (cyclic && next_ == expected_.size()) next_ = 0;
    if (following_ && next_ < expected_.size() && expected_[next_] == event) return next_++;
    following_ = false;
    if (!event.open) return kNowhere;
    for (std::size_t step = 0; step < expected_.size(); ++step) {
      const std::size_t at = (next_ + step) % expected_.size();
      if (expected_[at] == event) {
        next_ = at + 1;
        following_ = true;
        return at;
      }
    }
    return kNowhere;
  }

  bool deviated() const { return recorded_ != expected_; }

 private:
  Order expected_;
  Order recorded_;
  std::size_t next_ = 0;
  bool following_ = true;
};

}  // namespace tessera::engine
