// Strategies: which states are sharded over the ranks, and when gathered parameters are given back.
#pragma once

#include <concepts>

#include "tessera/policy/description.hpp"

namespace tessera {

/// A strategy is a type with `static constexpr StrategyDescription describe()`.
template <class S>
concept StrategyPolicy = requires {
  { S::describe() } -> std::same_as<StrategyDescription>;
};

/// DDP: every state on every rank. Gradients are reduced as rank-order sums and then gathered in
/// fp32, so that its bits are those of the sharded strategies.
struct Replicate {
  static constexpr StrategyDescription describe() { return {.name = "replicate"}; }
};

/// ZeRO-1 (Rajbhandari et al. 2020): optimizer states are sharded.
struct Zero1 {
  static constexpr StrategyDescription describe() {
    return {.name = "zero1", .shard_optimizer = true, .reshard = Reshard::after_step};
  }
};

/// ZeRO-2: optimizer states and gradients are sharded.
struct Zero2 {
  static constexpr StrategyDescription describe() {
    return {.name = "zero2",
            .shard_optimizer = true,
            .shard_gradients = true,
            .reshard = Reshard::after_step};
  }
};

/// ZeRO-3, FSDP: parameters too.
template <Reshard Rule = Reshard::after_forward>
struct Zero3 {
  static_assert(Rule == Reshard::after_forward || Rule == Reshard::after_backward,
                "tessera: Zero3 reshards after_forward or after_backward; for parameters kept "
                "until the step use Zero2");
  static constexpr StrategyDescription describe() {
    return {.name = Rule == Reshard::after_forward ? "zero3" : "zero3-keep",
            .shard_optimizer = true,
            .shard_gradients = true,
            .shard_parameters = true,
            .reshard = Rule};
  }
};

/// Zero3 in which units stay gathered until the step while Options::gathered_bytes lasts, the
/// largest first; the rest reshard after forward.
struct ByBudget {
  static constexpr StrategyDescription describe() {
    return {.name = "by-budget",
            .shard_optimizer = true,
            .shard_gradients = true,
            .shard_parameters = true,
            .reshard = Reshard::after_forward,
            .by_budget = true};
  }
};

static_assert(StrategyPolicy<Replicate> && StrategyPolicy<Zero1> && StrategyPolicy<Zero2> &&
              StrategyPolicy<Zero3<>> && StrategyPolicy<ByBudget>);

}  // namespace tessera
