// Gather and reshard: full parameters into slots or persistent buffers, and back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/engine/chunks.hpp"
#include "tessera/engine/context.hpp"

namespace tessera::engine {

template <Backend Bk>
class Gathering {
 public:
  using B = typename Bk::Runtime;

  static constexpr std::uint32_t kNoUnit = static_cast<std::uint32_t>(-1);

  explicit Gathering(Context<Bk>& context) : c_(context) {}

  bool needed(std::uint32_t unit) const {
    return !c_.units[unit].valid && c_.facts[unit].full_bytes > 0;
  }

  /// Issues one collective (several where a unit is split) for those of `units` that are not
  /// gathered. `offsets` are the slots the schedule chose. The first unit is `wanted` now, or none
  /// is: for a wanted one make_room() is asked for slots when there are none (false: it cannot make
  /// any); what is only gathered ahead is left for later instead. All of it is decided in program
  /// order, so that every rank issues the same.
  template <class MakeRoom>
  void issue(std::span<const std::uint32_t> units, std::span<const std::uint64_t> offsets,
             bool wanted, MakeRoom&& make_room) {
    issued_.clear();
    for (std::size_t i = 0; i < units.size(); ++i) {
      const std::uint32_t u = units[i];
      if (!needed(u)) continue;
      UnitState<B>& unit = c_.units[u];
      if (c_.facts[u].parameter_slot) {
        std::optional<std::uint64_t> slot =
            c_.slots.take(c_.facts[u].full_bytes, offsets[i], c_.gathering());
        const bool must = wanted && i == 0;
        while (!slot && must && make_room()) {
          slot = c_.slots.take(c_.facts[u].full_bytes, offsets[i], c_.gathering());
        }
        if (!slot && must) fail_without_room(u);
        if (!slot) continue;
        unit.parameter_slot = *slot;
        unit.parameters = c_.memory + c_.map.slots + unit.parameter_slot;
      } else {
        c_.backend.wait(c_.gathering(), unit.last_use);
      }
      unit.valid = true;
      unit.waited = false;
      issued_.push_back(u);
    }
    if (issued_.empty()) return;
    c_.note_use();
    for (std::uint32_t u : issued_) c_.wait_for_update(u);
    launch();
    for (std::uint32_t u : issued_) c_.backend.record(c_.units[u].gathered, c_.gathering());
    issued_.clear();
  }

  /// Holds compute back until the unit's parameters are there.
  void wait(std::uint32_t u) {
    UnitState<B>& unit = c_.units[u];
    if (unit.waited) return;
    unit.waited = true;
    c_.wait_timed("wait for gather", u, unit.gathered);
  }

  /// The unit's full parameters are given back; its own piece stays.
  void reshard(std::uint32_t u) {
    UnitState<B>& unit = c_.units[u];
    if (!unit.valid || c_.facts[u].reshard == Reshard::never) return;
    c_.recorder.instant("reshard", c_.registry.unit(u).name, StreamKind::compute);
    unit.valid = false;
    // Until compute has waited for the gather, only the gather stream knows when it has ended.
    typename B::Stream& stream = unit.waited ? c_.compute() : c_.gathering();
    if (unit.parameter_slot != kNoSlot) {
      if (c_.backend.poisons()) {
        c_.backend.fill(stream, unit.parameters, 0xFF, c_.facts[u].full_bytes);
      }
      give_back(unit, stream);
    } else {
      if (c_.backend.poisons()) poison_others(u, stream);
      c_.backend.record(unit.last_use, stream);
    }
  }

  /// Gives back what was gathered ahead and is not leased, nor `wanted`. True if there was any.
  bool drop_prefetched(std::uint32_t wanted = kNoUnit) {
    bool any = false;
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      UnitState<B>& unit = c_.units[u];
      const bool issuing = std::find(issued_.begin(), issued_.end(), u) != issued_.end();
      if (!unit.valid || unit.leases > 0 || unit.parameter_slot == kNoSlot || issuing ||
          u == wanted) {
        continue;
      }
      unit.valid = false;
      give_back(unit, c_.gathering());  // nobody but the gather has touched it
      any = true;
    }
    return any;
  }
  /// Gives back what was gathered for a lease that is being opened. True if it was in a slot.
  bool take_back(std::uint32_t u) {
    UnitState<B>& unit = c_.units[u];
    if (!unit.valid || unit.parameter_slot == kNoSlot) return false;
    unit.valid = false;
    give_back(unit, c_.gathering());
    return true;
  }
  void forget_issued() { issued_.clear(); }

 private:
  [[noreturn]] void fail_without_room(std::uint32_t u) const {
    std::string open;
    for (std::uint32_t other = 0; other < c_.units.size(); ++other) {
      // Of `u` one lease is the one that cannot be opened.
      if (c_.units[other].leases == (other == u ? 1 : 0)) continue;
      open += (open.empty() ? "'" : ", '") + c_.registry.unit(other).name + "'";
    }
    detail::fail("tessera: no slot for unit '", c_.registry.unit(u).name, "' (",
                 c_.facts[u].full_bytes, " bytes)",
                 open.empty() ? "" : " beside the open leases of ", open,
                 ": close them first, give a unit that stays open UnitOptions::outer, or raise "
                 "Options::spare_slot_bytes");
  }

  void give_back(UnitState<B>& unit, typename B::Stream& stream) {
    c_.slots.give_back(unit.parameter_slot, stream);
    unit.parameter_slot = kNoSlot;
    unit.parameters = nullptr;
  }

  void poison_others(std::uint32_t u, typename B::Stream& stream) {
    const layout::UnitLayout& at = c_.layout(u);
    for (std::uint32_t g = 0; g < at.group_count; ++g) {
      std::byte* full = c_.memory + c_.map.units[u].parameters + at.full_offset(g);
      const std::uint64_t own = at.groups[g].piece_bytes() * static_cast<std::uint64_t>(c_.rank());
      const std::uint64_t after = own + at.groups[g].piece_bytes();
      c_.backend.fill(stream, full, 0xFF, own);
      c_.backend.fill(stream, full + after, 0xFF, at.groups[g].full_bytes(c_.world()) - after);
    }
  }

  void launch() {
    const bool single = issued_.size() == 1;
    const std::uint64_t piece_bytes = single ? c_.layout(issued_[0]).piece_bytes() : 0;
    const std::uint64_t limit = single ? c_.options.bucket_bytes : 0;
    const std::uint64_t chunk = chunk_bytes(limit, c_.world());
    const std::uint64_t count = chunk_count(piece_bytes, limit, c_.world());
    const std::string& name = c_.registry.unit(issued_[0]).name;
    for (std::uint64_t i = 0; i < count; ++i) {
      segments_.clear();
      std::uint64_t bytes = 0;
      for (std::uint32_t u : issued_) bytes += add_segments(u, i, chunk);
      c_.backend.ahead_of_collective(c_.gathering());
      const std::size_t span =
          c_.recorder.begin(Span::collective, "gather", name, StreamKind::gather, bytes);
      c_.gather_comm.all_gather(c_.gathering(), {CollectiveKind::all_gather, name}, segments_);
      c_.recorder.end(span);
    }
  }

  std::uint64_t add_segments(std::uint32_t u, std::uint64_t index, std::uint64_t chunk) {
    const layout::UnitLayout& at = c_.layout(u);
    std::uint64_t total = 0;
    for (std::uint32_t g = 0; g < at.group_count; ++g) {
      const std::uint64_t stride = at.groups[g].piece_bytes();
      part_in_chunk(at.piece_offset(g), stride, index, chunk,
                    [&](std::uint64_t begin, std::uint64_t bytes) {
                      segments_.push_back({c_.piece(u, g) + begin,
                                           c_.units[u].parameters + at.full_offset(g) + begin,
                                           bytes, stride});
                      total += bytes;
                    });
    }
    return total;
  }

  Context<Bk>& c_;
  std::vector<std::uint32_t> issued_;
  std::vector<GatherSegment> segments_;
};

}  // namespace tessera::engine
