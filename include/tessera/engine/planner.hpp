// From units, policy and options to the plan, and to the address of every buffer within the one
// allocation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine/chunks.hpp"
#include "tessera/engine/options.hpp"
#include "tessera/engine/order.hpp"
#include "tessera/engine/plan.hpp"
#include "tessera/engine/registry.hpp"
#include "tessera/engine/schedule.hpp"
#include "tessera/engine/step_memory.hpp"

namespace tessera::engine {

/// Byte offsets of a unit's buffers within the allocation.
struct UnitMap {
  std::uint64_t parameters = 0;  ///< the full buffer where it persists, else the piece
  std::uint64_t master = 0;      ///< of the trainable groups that have one
  std::uint64_t reduced = 0;     ///< reduced gradients
  std::uint64_t moments = 0;     ///< the first of them; the others follow at equal distance
  std::uint64_t gradients = 0;   ///< the full buffer where it persists; may be `reduced`
};

struct MemoryMap {
  std::vector<UnitMap> units;
  std::uint64_t buffers = 0;  ///< where the states end, and gradient buffers and slots begin
  std::uint64_t slots = 0;
  std::uint64_t reduce_scratch = 0;
  std::uint64_t group_sums = 0;  ///< a collective's sums over the shard axis, before the replicas'
  std::uint64_t step = 0;        ///< where step_memory's offsets begin
  StepMemory step_memory;
  std::uint64_t total = 0;
};

/// Bytes ahead of `group` (of all of it with group_count) in an array of a unit's state that has
/// width(element type) bytes an element of its trainable groups: a piece's elements, or everything
/// where the strategy does not shard the optimizer.
template <class Width>
std::uint64_t state_offset(const layout::UnitLayout& layout, std::uint32_t group,
                           const StrategyDescription& strategy, Width&& width) {
  std::uint64_t bytes = 0;
  for (std::uint32_t g = 0; g < group; ++g) {
    if (!layout.groups[g].trainable) continue;
    bytes += layout.groups[g].piece_elements * width(layout.groups[g].dtype);
  }
  return strategy.shard_optimizer ? bytes : bytes * static_cast<std::uint64_t>(layout.world);
}
inline std::uint64_t reduced_offset(const layout::UnitLayout& layout, std::uint32_t group,
                                    const PolicyDescription& policy) {
  return state_offset(layout, group, policy.strategy,
                      [&](DType dtype) { return size_of(policy.precision.reduced_of(dtype)); });
}
inline std::uint64_t master_offset(const layout::UnitLayout& layout, std::uint32_t group,
                                   const PolicyDescription& policy) {
  return state_offset(layout, group, policy.strategy,
                      [&](DType dtype) { return policy.precision.master_bytes(dtype); });
}
inline std::uint64_t moment_offset(const layout::UnitLayout& layout, std::uint32_t group,
                                   const PolicyDescription& policy) {
  return state_offset(layout, group, policy.strategy,
                      [&](DType) { return size_of(policy.precision.moments); });
}

/// What the sum of a unit's gradients is divided by.
inline float divisor_of(const UnitRecord& unit, const Options& options, const MeshShape& mesh) {
  if (unit.options.gradient_divisor > 0) return unit.options.gradient_divisor;
  return options.gradient_divisor > 0 ? options.gradient_divisor
                                      : static_cast<float>(mesh.data_ranks());
}

/// Bytes of a unit's full gradient buffer ahead of `group` (of all of it with group_count).
inline std::uint64_t gradient_offset(const layout::UnitLayout& layout, std::uint32_t group,
                                     const PrecisionDescription& precision) {
  std::uint64_t bytes = 0;
  for (std::uint32_t g = 0; g < group; ++g) {
    if (!layout.groups[g].trainable) continue;
    bytes += layout.groups[g].full_elements(layout.world) *
             size_of(precision.gradient_of(layout.groups[g].dtype));
  }
  return bytes;
}

class Planner {
 public:
  Planner(const Registry& registry, const PolicyDescription& policy, const Options& options,
          const Requirements& needs, const MeshShape& mesh)
      : registry_(registry),
        policy_(policy),
        options_(options),
        needs_(needs),
        mesh_(mesh),
        world_(mesh.shard) {
    compute_facts();
  }

  const std::vector<UnitFacts>& facts() const { return facts_; }

  /// The schedule of an order; with fewer gathers ahead if its slots would not fit in
  /// `arena_limit` bytes. The result may still not fit: then the engine places slots as it goes.
  ScheduleTable schedule(const Order& order, std::uint64_t arena_limit) const {
    Depths depths = Depths::of(options_);
    for (;;) {
      ScheduleTable table = Scheduler(facts_, depths).run(order);
      if (table.arena_bytes <= arena_limit) return table;
      if (depths.prefetch > 0) {
        --depths.prefetch;
      } else if (depths.reductions > 0) {
        --depths.reductions;
      } else {
        return table;
      }
    }
  }

  std::pair<Plan, MemoryMap> plan() const {
    const std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
    const ScheduleTable training = schedule(expected_training_order(registry_), unlimited);
    const ScheduleTable evaluation = schedule(expected_evaluation_order(registry_), unlimited);
    const std::uint64_t slots = layout::round_up(
        std::max(training.arena_bytes, evaluation.arena_bytes) + options_.spare_slot_bytes, 256);

    Plan plan;
    MemoryMap map;
    map.units.resize(registry_.units().size());
    plan.policy = std::string(policy_.strategy.name) + ", " + policy_.precision.name + ", " +
                  policy_.offload.name;
    plan.mesh = mesh_;
    std::uint64_t at = 0;
    std::uint64_t gathered = 0;  // persistent full buffers beyond the piece: not state
    for (std::size_t u = 0; u < map.units.size(); ++u) {
      const UnitRecord& unit = registry_.unit(static_cast<std::uint32_t>(u));
      map.units[u].parameters = at;
      const bool full = !facts_[u].parameter_slot;
      at += full ? facts_[u].full_bytes : unit.layout.piece_bytes();
      if (full && policy_.strategy.shard_parameters) {
        gathered += facts_[u].full_bytes - unit.layout.piece_bytes();
      }
    }
    plan.memory.push_back({"parameters", at - gathered, true});
    plan.memory.push_back({"parameters kept gathered", gathered, false});
    add_states(plan, map, at);
    map.buffers = at;
    for (std::size_t u = 0; u < map.units.size(); ++u) {
      map.units[u].gradients = at;
      if (facts_[u].gradients_in_place) {
        map.units[u].gradients = map.units[u].reduced;
      } else if (!facts_[u].gradient_slot) {
        at += facts_[u].gradient_bytes;
      }
    }
    plan.memory.push_back({"full gradients", at - map.buffers, false});
    map.slots = at;
    at += slots;
    plan.memory.push_back({"slots", slots, false});
    map.reduce_scratch = at;
    const bool reduces = mesh_.data_ranks() > 1;
    const std::uint64_t scratch = needs_.reduce_scratch && reduces ? largest_reduction() : 0;
    at += scratch;
    if (scratch > 0) plan.memory.push_back({"reduction scratch", scratch, false});
    map.group_sums = at;
    const std::uint64_t sums = world_ > 1 && mesh_.replicate > 1 ? largest_group_sums() : 0;
    at += sums;
    if (sums > 0) plan.memory.push_back({"sums of a replica", sums, false});
    map.step = at;
    map.step_memory = StepMemory::lay_out(registry_, mesh_, options_, needs_);
    at += map.step_memory.total;
    plan.memory.push_back({"step scalars", map.step_memory.total, false});
    map.total = at;
    plan.most_used_bytes =
        at - slots + std::max(training.most_used_bytes, evaluation.most_used_bytes);
    add_units(plan);
    add_collectives(plan, training);
    return {std::move(plan), std::move(map)};
  }

 private:
  void compute_facts() {
    const StrategyDescription& strategy = policy_.strategy;
    for (const UnitRecord& unit : registry_.units()) {
      UnitFacts facts;
      facts.full_bytes = unit.layout.full_bytes();
      facts.gradient_bytes =
          gradient_offset(unit.layout, unit.layout.group_count, policy_.precision);
      facts.trainable = facts.gradient_bytes > 0;
      facts.outer = unit.options.outer;
      const bool gathers = world_ > 1 || options_.collectives_at_one_rank;
      facts.reshard = gathers ? strategy.reshard : Reshard::never;
      if (unit.options.override_reshard && strategy.shard_parameters && gathers) {
        facts.reshard = unit.options.reshard;
      }
      facts.gradients_in_place =
          facts.trainable && !gathers && mesh_.replicate == 1 && needs_no_reduction(unit);
      facts.gradient_slot = !facts.gradients_in_place && strategy.shard_gradients &&
                            options_.accumulation == Accumulation::reduce_each;
      facts_.push_back(facts);
    }
    if (strategy.by_budget && world_ > 1) keep_by_budget();
    for (UnitFacts& facts : facts_) {
      facts.parameter_slot = facts.reshard == Reshard::after_forward;
    }
  }

  // At one rank: a gradient as it is written is the reduced one.
  bool needs_no_reduction(const UnitRecord& unit) const {
    if (divisor_of(unit, options_, mesh_) != 1) return false;
    for (const layout::GroupLayout& group : unit.layout.used()) {
      if (group.trainable &&
          policy_.precision.gradient_of(group.dtype) != policy_.precision.reduced_of(group.dtype)) {
        return false;
      }
    }
    return true;
  }

  // The largest first, never over, whatever the order of registration.
  void keep_by_budget() {
    std::vector<std::size_t> order(facts_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return facts_[a].full_bytes > facts_[b].full_bytes;
    });
    std::uint64_t left = options_.gathered_bytes;
    for (std::size_t u : order) {
      if (registry_.units()[u].options.override_reshard || facts_[u].full_bytes > left) continue;
      facts_[u].reshard = Reshard::after_step;
      left -= facts_[u].full_bytes;
    }
  }

  void add_states(Plan& plan, MemoryMap& map, std::uint64_t& at) const {
    const auto add = [&](const char* what, auto member, auto offset, int arrays) {
      const std::uint64_t before = at;
      for (std::size_t u = 0; u < map.units.size(); ++u) {
        const layout::UnitLayout& layout = registry_.units()[u].layout;
        map.units[u].*member = at;
        at += offset(layout, layout.group_count, policy_) * static_cast<std::uint64_t>(arrays);
      }
      plan.memory.push_back({what, at - before, true});
    };
    add("master weights", &UnitMap::master, master_offset, 1);
    add("moments", &UnitMap::moments, moment_offset, needs_.moments);
    add("reduced gradients", &UnitMap::reduced, reduced_offset, 1);
  }

  void add_units(Plan& plan) const {
    for (std::size_t u = 0; u < facts_.size(); ++u) {
      const UnitRecord& unit = registry_.units()[u];
      PlanUnit row{
          unit.name, facts_[u].full_bytes, unit.layout.piece_bytes(), facts_[u].gradient_bytes, 0,
          0};
      for (const layout::GroupLayout& group : unit.layout.used()) {
        row.padding += group.full_elements(world_);
      }
      for (std::uint32_t id : unit.tensors) {
        const TensorRecord& tensor = registry_.tensor(id);
        row.padding -= tensor.elements;
        if (!tensor.handle.rebindable()) {
          row.copied += tensor.elements * size_of(tensor.info.dtype);
        }
      }
      plan.units.push_back(std::move(row));
    }
  }

  // Full bytes of the largest collective a bucket may become: see Bucket and chunk_bytes.
  std::uint64_t largest_reduction() const {
    std::uint64_t largest = 0;
    std::uint64_t all = 0;
    for (const UnitFacts& facts : facts_) {
      largest = std::max(largest, facts.gradient_bytes);
      all += facts.gradient_bytes;
    }
    if (options_.bucket_bytes == 0) return largest;
    const std::uint64_t chunk = chunk_bytes(options_.bucket_bytes, world_, mesh_.replicate) *
                                static_cast<std::uint64_t>(world_);
    return std::min(all, std::max(options_.bucket_bytes, chunk));
  }

  // A rank's part of it, in the type that is kept.
  std::uint64_t largest_group_sums() const {
    std::uint64_t widening = 1;
    for (const UnitRecord& unit : registry_.units()) {
      for (const layout::GroupLayout& group : unit.layout.used()) {
        if (!group.trainable) continue;
        const std::uint64_t from = size_of(policy_.precision.gradient_of(group.dtype));
        widening = std::max(widening, size_of(policy_.precision.reduced_of(group.dtype)) / from);
      }
    }
    const std::uint64_t part = largest_reduction() / static_cast<std::uint64_t>(world_);
    return layout::round_up(part * widening, 256);
  }

  std::uint64_t chunks(std::uint64_t full_bytes, std::size_t units_in_bucket, int replicas) const {
    if (units_in_bucket > 1) return 1;
    return chunk_count(full_bytes / static_cast<std::uint64_t>(world_), options_.bucket_bytes,
                       world_, replicas);
  }

  void add_collectives(Plan& plan, const ScheduleTable& table) const {
    if (mesh_.tensor > 1 && !registry_.tensors().empty()) {
      const std::uint64_t bytes = registry_.tensors().size() * sizeof(double);
      plan.collectives[CollectiveKind::scalars] = {
          1, bytes * static_cast<std::uint64_t>(mesh_.tensor - 1)};
    }
    if (mesh_.replicate > 1) add_replica_collectives(plan, table);
    if (world_ == 1) return;
    const auto others = static_cast<std::uint64_t>(world_ - 1);
    const auto ranks = static_cast<std::uint64_t>(world_);
    auto& gather = plan.collectives[CollectiveKind::all_gather];
    for (const auto& units : table.gathers) {
      std::uint64_t bytes = 0;
      std::size_t moved = 0;
      for (std::uint32_t u : units) {
        if (facts_[u].reshard == Reshard::after_step && !facts_[u].trainable) continue;  // once
        bytes += facts_[u].full_bytes;
        ++moved;
      }
      if (bytes == 0) continue;
      gather.count += chunks(bytes, moved, 1);
      gather.bytes += bytes / ranks * others;
    }
    auto& reduce = plan.collectives[CollectiveKind::reduce_scatter];
    std::vector<char> summed(facts_.size(), 0);
    for (const auto& units : table.reductions) {
      std::uint64_t bytes = 0;
      for (std::uint32_t u : units) {
        bytes += facts_[u].gradient_bytes;
        if (policy_.strategy.shard_optimizer || summed[u]) continue;
        summed[u] = 1;
        ++gather.count;  // Replicate gathers the sums, once a step: a tied unit reduces twice
        const layout::UnitLayout& layout = registry_.units()[u].layout;
        gather.bytes += reduced_offset(layout, layout.group_count, policy_) / ranks * others;
      }
      reduce.count += chunks(bytes, units.size(), mesh_.replicate);
      reduce.bytes += bytes / ranks * others;
    }
    const std::uint64_t scalars = NormTree::bytes(registry_, world_);
    if (scalars > 0) {
      ++plan.collectives[CollectiveKind::scalars].count;
      plan.collectives[CollectiveKind::scalars].bytes += scalars / ranks * others;
    }
  }

  // Each reduction's sums are added up over the replicas, and the parts of the result gathered.
  void add_replica_collectives(Plan& plan, const ScheduleTable& table) const {
    const auto replicas = static_cast<std::uint64_t>(mesh_.replicate);
    auto& gather = plan.collectives[CollectiveKind::all_gather];
    auto& reduce = plan.collectives[CollectiveKind::reduce_scatter];
    for (const auto& units : table.reductions) {
      std::uint64_t full = 0;
      std::uint64_t sums = 0;     // of this rank's piece, as they come to the replicas
      std::uint64_t reduced = 0;  // as they are kept
      for (std::uint32_t u : units) {
        full += facts_[u].gradient_bytes;
        for (const layout::GroupLayout& group : registry_.unit(u).layout.used()) {
          if (!group.trainable) continue;
          const std::uint64_t kept =
              group.piece_elements * size_of(policy_.precision.reduced_of(group.dtype));
          reduced += kept;
          sums += world_ > 1
                      ? kept
                      : group.piece_elements * size_of(policy_.precision.gradient_of(group.dtype));
        }
      }
      const std::uint64_t count = chunks(full, units.size(), mesh_.replicate);
      reduce.count += count;
      reduce.bytes += sums / replicas * (replicas - 1);
      gather.count += count;
      gather.bytes += reduced / replicas * (replicas - 1);
    }
  }

  const Registry& registry_;
  PolicyDescription policy_;
  const Options& options_;
  Requirements needs_;
  MeshShape mesh_;
  int world_;  ///< ranks that share the state
  std::vector<UnitFacts> facts_;
};

}  // namespace tessera::engine
