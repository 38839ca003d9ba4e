// Gradient buffers and their reduction: full gradients in, means in the pieces out.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine/chunks.hpp"
#include "tessera/engine/context.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera::engine {

template <Backend Bk>
class Reducing {
 public:
  using B = typename Bk::Runtime;

  explicit Reducing(Context<Bk>& context) : c_(context), bucket_(context.options.bucket_bytes) {}

  /// As many as the schedule in force has slots for.
  void allow_in_flight(int reductions) { most_in_flight_ = reductions; }

  /// A backward lease is about to open on a unit that has none: gives back the slots that the
  /// schedule counts as free by then. Ahead of its gather, which may have been promised their room.
  void make_way(std::uint32_t u) {
    if (bucket_.holds(u)) flush();
    while (in_flight_.size() > static_cast<std::size_t>(most_in_flight_)) retire();
  }

  /// Then its gradient buffer is opened, ready to be written.
  template <class MakeRoom>
  void open(std::uint32_t u, std::uint64_t preferred, MakeRoom&& make_room) {
    UnitState<B>& unit = c_.units[u];
    unit.reduces = false;
    unit.written.assign(c_.registry.unit(u).tensors.size(), 0);
    const std::size_t span = c_.recorder.begin(Span::wait, "wait for reduction",
                                               c_.registry.unit(u).name, StreamKind::compute);
    if (c_.facts[u].gradient_slot) {
      const std::uint64_t bytes = c_.facts[u].gradient_bytes;
      std::optional<std::uint64_t> slot = c_.slots.take(bytes, preferred, c_.compute());
      while (!slot && make_room()) slot = c_.slots.take(bytes, preferred, c_.compute());
      if (!slot) {
        detail::fail("tessera: no slot for the gradients of unit '", c_.registry.unit(u).name,
                     "' (", bytes,
                     " bytes): close other leases first or raise "
                     "Options::spare_slot_bytes");
      }
      unit.gradient_slot = *slot;
      unit.gradients = c_.memory + c_.map.slots + *slot;
      c_.note_use();
    } else if (c_.facts[u].gradients_in_place) {  // no other stream uses them
      if (c_.backend.poisons() && !c_.holds_gradients(u)) {
        c_.backend.fill(c_.compute(), unit.gradients, 0xFF, c_.facts[u].gradient_bytes);
      }
    } else {
      c_.backend.wait(c_.compute(), unit.reduction);  // it may still be read
    }
    c_.recorder.end(span);
  }

  /// The last backward lease of a unit closes: what nobody wrote is zero, and, if it reduces, the
  /// unit joins the bucket.
  void close(std::uint32_t u) {
    UnitState<B>& unit = c_.units[u];
    if (!c_.holds_gradients(u)) zero_unwritten(u);
    unit.gradients_held = true;
    if (unit.reduces) reduce(u);
  }

  /// Reduces what is held unreduced. True if there was anything.
  bool reduce_held() {
    bool any = false;
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (!c_.units[u].gradients_held || bucket_.holds(u)) continue;
      reduce(u);
      any = true;
    }
    flush();
    return any;
  }

  /// The name of a unit with gradients that no reduction is due for; null if there is none.
  const std::string* unreduced() const {
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (c_.units[u].gradients_held && !bucket_.holds(u)) return &c_.registry.unit(u).name;
    }
    return nullptr;
  }

  /// Reduces the bucket, if anything waits in it.
  void flush() {
    if (bucket_.empty()) return;
    c_.backend.record(earlier_, c_.reducing());
    latest_ = bucket_.units();
    c_.backend.record(ready_, c_.compute());
    c_.backend.wait(c_.reducing(), ready_);
    launch();
    InFlight flight;
    for (std::uint32_t u : bucket_.units()) {
      UnitState<B>& unit = c_.units[u];
      if (c_.backend.poisons()) {
        c_.backend.fill(c_.reducing(), unit.gradients, 0xFF, c_.facts[u].gradient_bytes);
      }
      const bool waited_for = c_.options.schedule == Schedule::sequential;
      if (unit.gradient_slot == kNoSlot || waited_for) {
        c_.backend.record(unit.reduction, c_.reducing());
      }
      if (unit.gradient_slot != kNoSlot) {
        c_.slots.finish_use(unit.gradient_slot, c_.reducing());
        flight.slots.push_back(unit.gradient_slot);
        unit.gradient_slot = kNoSlot;
        unit.gradients = nullptr;
      }
      unit.gradients_held = false;
      unit.reduced = true;
    }
    const std::uint32_t last = bucket_.units().back();
    in_flight_.push_back(std::move(flight));
    bucket_.clear();
    if (c_.options.schedule == Schedule::sequential) {
      c_.wait_timed("wait for reduction", last, c_.units[last].reduction);
    }
  }

  /// The units of the latest collective, and an event that its stream reaches ahead of it: what is
  /// made of the other units' sums need not wait for these.
  const std::vector<std::uint32_t>& latest() const { return latest_; }
  typename B::Event& earlier() { return earlier_; }
  void forget_latest() { latest_.clear(); }

  /// Forward leases begin again: the last micro-step's reductions are due, and its slots are free
  /// for gathers, which wait for the reductions where they share memory.
  void end_micro_step() {
    flush();
    retire_all();
  }

  /// Gives the slots of all reductions in flight back. True if there were any.
  bool retire_all() {
    const bool any = !in_flight_.empty();
    while (!in_flight_.empty()) retire();
    return any;
  }

  /// After a failure: nothing waits, nothing is in flight, nothing has been reduced.
  void forget() {
    retire_all();
    bucket_.clear();
    latest_.clear();
    for (UnitState<B>& unit : c_.units) {
      if (unit.gradient_slot != kNoSlot) {
        c_.slots.give_back(unit.gradient_slot, c_.compute());
        unit.gradient_slot = kNoSlot;
        unit.gradients = nullptr;
      }
      unit.backward_leases = 0;
      unit.gradients_held = unit.reduces = unit.reduced = false;
    }
  }

  /// Where a tensor's full gradient lies; only while its unit has a gradient buffer.
  std::byte* gradient(const TensorRecord& tensor) {
    const layout::UnitLayout& at = c_.layout(tensor.unit);
    const std::uint32_t g = tensor.placement.group;
    if (tensor.elements == 0) return nullptr;
    return c_.units[tensor.unit].gradients + gradient_offset(at, g, c_.policy.precision) +
           tensor.placement.offset * size_of(c_.gradient_dtype(tensor.unit, g));
  }

 private:
  struct InFlight {
    std::vector<std::uint64_t> slots;
  };

  void reduce(std::uint32_t u) {
    if (c_.facts[u].gradients_in_place) {
      c_.units[u].gradients_held = false;
      c_.units[u].reduced = true;
      return;
    }
    const std::uint64_t bytes = c_.facts[u].gradient_bytes;
    if (!bucket_.has_room_for(bytes)) flush();
    bucket_.add(u, bytes);
    if (bucket_.full()) flush();
  }

  void retire() {
    for (std::uint64_t slot : in_flight_.front().slots) c_.slots.give_back(slot);
    in_flight_.pop_front();
  }

  // Neighbours in memory are filled at once, padding between them included.
  void zero_unwritten(std::uint32_t u) {
    const UnitRecord& record = c_.registry.unit(u);
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    const auto fill = [&] {
      if (from != nullptr) {
        c_.backend.fill(c_.compute(), from, 0, static_cast<std::uint64_t>(to - from));
      }
      from = nullptr;
    };
    for (std::size_t i = 0; i < record.tensors.size(); ++i) {
      const TensorRecord& tensor = c_.registry.tensor(record.tensors[i]);
      if (!tensor.info.trainable || tensor.elements == 0) continue;
      std::byte* const begin = gradient(tensor);
      if (c_.units[u].written[i] || begin < to) fill();  // groups need not be in order
      if (c_.units[u].written[i]) continue;
      const std::uint64_t width = size_of(c_.gradient_dtype(u, tensor.placement.group));
      if (from == nullptr || begin != to) {
        fill();
        from = begin;
      }
      to = begin + layout::round_up(tensor.elements, layout::kGranule) * width;
    }
    fill();
  }

  float scale_of(std::uint32_t u) const {
    const float divisor = divisor_of(c_.registry.unit(u), c_.options, c_.mesh_shape);
    const StrictRounding strict;
    return (StrictDouble{1.0} / StrictDouble{static_cast<double>(divisor)}).to_float();
  }

  void launch() {
    const std::vector<std::uint32_t>& units = bucket_.units();
    const bool single = units.size() == 1;
    std::uint64_t piece_bytes = 0;
    if (single)
      piece_bytes = c_.facts[units[0]].gradient_bytes / static_cast<std::uint64_t>(c_.world());
    const std::uint64_t limit = single ? c_.options.bucket_bytes : 0;
    const std::uint64_t chunk = chunk_bytes(limit, c_.world(), c_.replicas());
    const std::uint64_t count = chunk_count(piece_bytes, limit, c_.world(), c_.replicas());
    const std::string& name = c_.registry.unit(units[0]).name;
    for (std::uint64_t i = 0; i < count; ++i) {
      segments_.clear();
      std::uint64_t bytes = 0;
      for (std::uint32_t u : units) bytes += add_segments(u, i, chunk);
      if (c_.replicas() == 1) {
        reduce_scatter(c_.reduce_comm, c_.world(), "reduce", name, bytes);
        continue;
      }
      if (c_.world() > 1) {
        segments_.swap(over_replicas_);
        make_group_sums();
        reduce_scatter(c_.reduce_comm, c_.world(), "reduce", name, bytes);
        segments_.swap(over_replicas_);
      }
      add_up_replicas(name);
    }
  }

  // What segments_ says.
  void reduce_scatter(typename Bk::Communicator& among, int ranks, const char* what,
                      const std::string& name, std::uint64_t bytes) {
    c_.backend.ahead_of_collective(c_.reducing());
    const std::size_t span =
        c_.recorder.begin(Span::collective, what, name, StreamKind::reduce, bytes);
    among.reduce_scatter(c_.reducing(), {CollectiveKind::reduce_scatter, name}, segments_,
                         scratch(ranks));
    c_.recorder.end(span);
  }

  std::byte* scratch(int ranks) {
    return c_.needs.reduce_scratch && ranks > 1 ? c_.memory + c_.map.reduce_scratch : nullptr;
  }

  // Turns over_replicas_, the segments of a reduction, into two steps: segments_ add the shard
  // axis up, in rank order and unscaled, and what remains adds those sums up over the replicas.
  void make_group_sums() {
    segments_.clear();
    std::byte* at = c_.memory + c_.map.group_sums;
    for (ReduceSegment& segment : over_replicas_) {
      segments_.push_back({segment.full, segment.dtype, at, segment.elements, segment.stride, 1,
                           false, segment.out_dtype});
      segment.full = at;
      segment.dtype = segment.out_dtype;
      at += segment.elements * size_of(segment.out_dtype);
    }
  }

  // segments_: what each replica has of this rank's pieces, whole. Each adds a part of it up, and
  // all get all parts.
  void add_up_replicas(const std::string& name) {
    const auto replicas = static_cast<std::uint64_t>(c_.replicas());
    const auto own = static_cast<std::uint64_t>(c_.place.replicate);
    parts_.clear();
    std::uint64_t summed = 0;
    std::uint64_t gathered = 0;
    for (ReduceSegment& segment : segments_) {
      segment.elements /= replicas;  // pieces and their chunks are multiples of it
      segment.stride = segment.elements;
      const std::uint64_t bytes = segment.elements * size_of(segment.out_dtype);
      auto* const all = static_cast<std::byte*>(segment.out);
      segment.out = all + bytes * own;
      parts_.push_back({segment.out, all, bytes, bytes});
      summed += segment.elements * replicas * size_of(segment.dtype);
      gathered += bytes;
    }
    reduce_scatter(c_.replica_comm, c_.replicas(), "reduce over replicas", name, summed);
    c_.backend.ahead_of_collective(c_.reducing());
    const std::size_t span = c_.recorder.begin(Span::collective, "gather over replicas", name,
                                               StreamKind::reduce, gathered);
    c_.replica_comm.all_gather(c_.reducing(), {CollectiveKind::all_gather, name}, parts_);
    c_.recorder.end(span);
  }

  std::uint64_t add_segments(std::uint32_t u, std::uint64_t index, std::uint64_t chunk) {
    const layout::UnitLayout& at = c_.layout(u);
    const bool accumulate = c_.units[u].reduced;
    const float scale = scale_of(u);
    std::uint64_t position = 0;
    std::uint64_t total = 0;
    for (std::uint32_t g = 0; g < at.group_count; ++g) {
      if (!at.groups[g].trainable) continue;
      const DType dtype = c_.gradient_dtype(u, g);
      const std::uint64_t elements = at.groups[g].piece_elements;
      const std::uint64_t own =
          c_.policy.strategy.shard_optimizer ? 0 : elements * static_cast<std::uint64_t>(c_.rank());
      const std::byte* full = c_.units[u].gradients + gradient_offset(at, g, c_.policy.precision);
      const DType reduced = c_.reduced_dtype(u, g);
      part_in_chunk(
          position, elements * size_of(dtype), index, chunk,
          [&](std::uint64_t begin, std::uint64_t bytes) {
            const std::uint64_t first = own + begin / size_of(dtype);
            segments_.push_back({full + begin, dtype, c_.reduced(u, g) + first * size_of(reduced),
                                 bytes / size_of(dtype), elements, scale, accumulate, reduced});
            total += bytes;
          });
      position += elements * size_of(dtype);
    }
    return total;
  }

  Context<Bk>& c_;
  int most_in_flight_ = 0;
  Bucket bucket_;
  std::deque<InFlight> in_flight_;
  std::vector<ReduceSegment> segments_;
  std::vector<ReduceSegment> over_replicas_;
  std::vector<GatherSegment> parts_;
  std::vector<std::uint32_t> latest_;
  typename B::Event ready_;
  typename B::Event earlier_;
};

}  // namespace tessera::engine
