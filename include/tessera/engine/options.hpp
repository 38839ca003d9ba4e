// Run-time options of a Shard: orthogonal to its policy, with defaults that need no thought.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/error.hpp"
#include "tessera/exact/cell_sum.hpp"
#include "tessera/exact/classify.hpp"
#include "tessera/policy/description.hpp"

namespace tessera {

enum class Schedule : std::uint8_t {
  overlapped,  ///< gathers ahead of use, reductions behind: both beside compute
  sequential,  ///< nothing in flight beside compute (FairScale's pattern): what overlap is worth
};

/// When gradients of several micro-steps are reduced.
enum class Accumulation : std::uint8_t {
  reduce_each,  ///< every micro-step; sums accumulate in the fp32 pieces
  /// Leases inside Shard::accumulate() do not reduce: full gradients are held for every unit (the
  /// plan shows it) and reduced by the first lease outside it, or by reduce_gradients().
  reduce_once,
};

/// What step() does with a trainable unit that had no backward lease since the last step.
enum class UnusedUnits : std::uint8_t {
  keep,    ///< it is left as it is: neither parameters nor moments move
  refuse,  ///< step() throws and names it
};

/// The settings of tensors passed by in_group(tensor, index).
struct ParameterGroup {
  float learning_rate_scale = 1;
  /// Replaces the optimizer's weight decay; negative: the optimizer's own.
  float weight_decay = -1;
};

struct Options {
  Schedule schedule = Schedule::overlapped;
  /// How many leases ahead parameters are gathered; each may cost one more slot.
  int prefetch_depth = 1;
  /// Bytes gathered ahead, not counting the units in use.
  std::uint64_t prefetch_bytes = std::numeric_limits<std::uint64_t>::max();
  /// How many reductions may be in flight before a backward lease waits for the oldest; each may
  /// cost one more gradient slot.
  int reductions_in_flight = 1;
  /// Bytes (full buffers) in one collective: smaller units are merged up to it, larger ones are
  /// split. 0: a collective a unit.
  std::uint64_t bucket_bytes = 0;
  Accumulation accumulation = Accumulation::reduce_each;
  /// ByBudget only: bytes of full parameter buffers that may stay gathered between uses.
  std::uint64_t gathered_bytes = 0;
  /// Room in the slot arena beyond what the expected order of leases needs, for programs that hold
  /// more leases at once.
  std::uint64_t spare_slot_bytes = 0;
  /// Gradients are scaled so that their norm is at most this. 0: no clipping.
  float clip_norm = 0;
  NormKind norm = NormKind::l2;
  /// Sums over ranks are divided by this. 0: the number of ranks (a mean).
  float gradient_divisor = 0;
  UnusedUnits unused_units = UnusedUnits::keep;
  std::vector<ParameterGroup> groups = {};
  /// Of the random bits of stochastic rounding, where the precision rounds so.
  std::uint64_t rounding_seed = 0;
  /// One rank alone gathers, reshards and reduces as several would: what that costs, without them.
  bool collectives_at_one_rank = false;
  /// Keep every stream's begin and end times for Shard::trace().
  bool trace = false;

  /// Throws Error on values that make no sense.
  void validate() const {
    if (prefetch_depth < 0) detail::fail("tessera: Options::prefetch_depth must not be negative");
    if (reductions_in_flight < 0) {
      detail::fail("tessera: Options::reductions_in_flight must not be negative");
    }
    if (!detail::is_zero_or_normal(clip_norm)) {
      detail::fail("tessera: Options::clip_norm must be 0 (off) or positive, finite and normal, ",
                   "not ", clip_norm);
    }
    if (!detail::is_zero_or_normal(gradient_divisor)) {
      detail::fail("tessera: Options::gradient_divisor must be 0 (the mean) or positive, finite ",
                   "and normal, not ", gradient_divisor);
    }
    if (norm != NormKind::l1 && norm != NormKind::l2 && norm != NormKind::inf) {
      detail::fail("tessera: Options::norm is ", static_cast<int>(norm),
                   ", which is none of NormKind::l2, l1 and inf");
    }
    for (const ParameterGroup& group : groups) {
      if (!detail::is_non_negative(group.learning_rate_scale) ||
          detail::is_nan_bits(detail::bits_of(group.weight_decay))) {
        detail::fail("tessera: Options::groups: learning_rate_scale must be finite and not ",
                     "negative, weight_decay a number; not ", group.learning_rate_scale, " and ",
                     group.weight_decay);
      }
    }
  }
};

/// What a unit may have of its own.
struct UnitOptions {
  /// Its lease stays open around the other units' leases of a pass, as FSDP's root unit does: the
  /// plan then counts its slot beside theirs.
  bool outer = false;
  /// Replaces the strategy's rule for this unit; only where the strategy shards parameters.
  bool override_reshard = false;
  Reshard reshard = Reshard::after_forward;
  /// Replaces Options::gradient_divisor for this unit; 0: not replaced.
  float gradient_divisor = 0;
};

}  // namespace tessera
