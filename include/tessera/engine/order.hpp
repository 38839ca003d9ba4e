// The order of leases: what is expected before the first step, what was recorded since, and where
// in it the program is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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
  /// What decides where buffers lie: not whether they are all needed this time.
  constexpr bool same_place(const LeaseEvent& other) const {
    return unit == other.unit && phase == other.phase && open == other.open;
  }
};

using Order = std::vector<LeaseEvent>;

inline void append_pass(Order& order, const Registry& registry, Phase phase) {
  const auto count = static_cast<std::uint32_t>(registry.units().size());
  const auto push = [&](std::uint32_t u, bool open) {
    order.push_back({u, phase, open, true, true});
  };
  // A lease opens with those of the units that its own shares tensors with.
  const auto open = [&](std::uint32_t u) {
    for (std::uint32_t owner : registry.unit(u).borrowed_units) push(owner, true);
    push(u, true);
  };
  const auto close = [&](std::uint32_t u) {
    push(u, false);
    const std::vector<std::uint32_t>& owners = registry.unit(u).borrowed_units;
    for (std::size_t b = owners.size(); b-- > 0;) push(owners[b], false);
  };
  for (std::uint32_t u = 0; u < count; ++u) {
    if (registry.unit(u).options.outer) open(u);
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t u = phase == Phase::forward ? i : count - 1 - i;
    if (registry.unit(u).options.outer) continue;
    open(u);
    close(u);
  }
  for (std::uint32_t i = count; i-- > 0;) {
    if (registry.unit(i).options.outer) close(i);
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

  /// Leases are about to open, one after the other. True if they are next in the expected order.
  /// Where they come elsewhere in it, the program is from now on followed from there. `cyclic`: the
  /// order starts again at its end.
  bool seek(std::span<const LeaseEvent> opening, bool cyclic) {
    if (cyclic && next_ == expected_.size()) next_ = 0;
    if (following_ && is_at(next_, opening)) return true;
    following_ = false;
    for (std::size_t step = 0; step < expected_.size(); ++step) {
      const std::size_t at = (next_ + step) % expected_.size();
      if (!is_at(at, opening)) continue;
      next_ = at;
      following_ = true;
      break;
    }
    return false;
  }

  /// The event's place in the expected order, or kNowhere where the program deviates.
  std::size_t on(const LeaseEvent& event, bool cyclic) {
    if (!cyclic) recorded_.push_back(event);
    following_ = following_ && next_ < expected_.size() && expected_[next_].same_place(event);
    return following_ ? next_++ : kNowhere;
  }

  bool deviated() const { return recorded_ != expected_; }

 private:
  bool is_at(std::size_t at, std::span<const LeaseEvent> events) const {
    return events.size() <= expected_.size() - at &&
           std::equal(events.begin(), events.end(),
                      expected_.begin() + static_cast<std::ptrdiff_t>(at),
                      [](const LeaseEvent& a, const LeaseEvent& b) { return a.same_place(b); });
  }

  Order expected_;
  Order recorded_;
  std::size_t next_ = 0;
  bool following_ = true;
};

}  // namespace tessera::engine
