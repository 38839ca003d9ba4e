// What the parts of the engine share: one rank's registry, plan, memory, streams and unit states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/mesh.hpp"
#include "tessera/engine/norm_tree.hpp"
#include "tessera/engine/options.hpp"
#include "tessera/engine/planner.hpp"
#include "tessera/engine/recorder.hpp"
#include "tessera/engine/registry.hpp"
#include "tessera/engine/slots.hpp"
#include "tessera/engine/step_tables.hpp"

namespace tessera::engine {

/// What a gather of a unit has to wait for on compute.
enum class PendingUpdate : std::uint8_t {
  none,
  own,  ///< the unit's update
  all,  ///< whatever was last noted of all units
};

/// One unit at run time.
template <Runtime B>
struct UnitState {
  // Parameters.
  std::byte* parameters = nullptr;         ///< the full buffer; null while resharded
  std::uint64_t parameter_slot = kNoSlot;  ///< its slot, where it has one
  bool valid = false;                      ///< every piece has been gathered, or is being
  bool waited = false;                     ///< compute has waited for that gather
  bool bound = false;                      ///< the user's tensors point into the buffer
  int leases = 0;
  typename B::Event gathered;  ///< on the gather stream
  typename B::Event last_use;  ///< on compute: a gather into a persistent buffer waits for it
  typename B::Event updated;   ///< on compute: the optimizer has changed the unit's piece
  PendingUpdate pending_update = PendingUpdate::none;

  // Gradients.
  std::byte* gradients = nullptr;
  std::uint64_t gradient_slot = kNoSlot;
  int backward_leases = 0;
  bool gradients_held = false;  ///< the buffer holds contributions that were not reduced
  bool reduces = false;         ///< a lease of this opening wants the reduction
  bool reduced = false;         ///< the sums hold this step's gradients
  std::vector<char> written;    ///< by tensor of the unit: its gradient was asked for
  typename B::Event reduction;  ///< on the reduce stream: the latest reduction is complete
};

template <Backend Bk>
struct Context {
  using B = typename Bk::Runtime;
  using Comm = typename Bk::Communicator;

  Context(Mesh<Bk>& mesh, const PolicyDescription& description, Options user_options,
          const Requirements& requirements)
      : policy(description),
        options(std::move(user_options)),
        needs(requirements),
        registry(description.precision),
        backend(mesh.options()),
        mesh_shape(mesh.shape()),
        place(mesh.place()),
        control(mesh.communicator()),
        gather_comm(mesh.shard().channel()),
        reduce_comm(mesh.shard().channel()),
        replica_comm(mesh.replicate().channel()),
        tensor_comm(mesh.tensor().channel()),
        slots(backend, events),
        recorder(backend, options.trace) {}

  /// Along the shard axis: which pieces this rank has, of how many.
  int rank() const { return place.shard; }
  int world() const { return mesh_shape.shard; }
  int replicas() const { return mesh_shape.replicate; }
  /// Among all ranks of the mesh.
  int mesh_rank() const { return mesh_shape.rank(place); }
  bool communicates() const { return world() > 1 || options.collectives_at_one_rank; }

  typename B::Stream& compute() { return backend.stream(StreamKind::compute); }
  typename B::Stream& gathering() { return backend.stream(StreamKind::gather); }
  typename B::Stream& reducing() { return backend.stream(StreamKind::reduce); }

  const layout::UnitLayout& layout(std::uint32_t unit) const { return registry.unit(unit).layout; }

  /// Whether the unit's gradient buffer holds something that more is added to.
  bool holds_gradients(std::uint32_t unit) const {
    const UnitState<B>& state = units[unit];
    return state.gradients_held || (facts[unit].gradients_in_place && state.reduced);
  }

  /// A rank's own part of a group, wherever the unit keeps it.
  std::byte* piece(std::uint32_t unit, std::uint32_t group) {
    const layout::UnitLayout& at = layout(unit);
    std::byte* base = memory + map.units[unit].parameters;
    if (facts[unit].parameter_slot) return base + at.piece_offset(group);
    return base + at.full_offset(group) +
           at.groups[group].piece_bytes() * static_cast<std::uint64_t>(rank());
  }

  /// The same, or all of it where the strategy does not shard the optimizer: what this rank
  /// updates.
  std::byte* weights(std::uint32_t unit, std::uint32_t group) {
    if (policy.strategy.shard_optimizer) return piece(unit, group);
    return memory + map.units[unit].parameters + layout(unit).full_offset(group);
  }

  /// The elements of a group that this rank's states cover, counted in the flat parameter.
  layout::Range state_range(std::uint32_t unit, std::uint32_t group) const {
    const layout::GroupLayout& of = layout(unit).groups[group];
    if (!policy.strategy.shard_optimizer) return {0, of.full_elements(world())};
    const std::uint64_t begin = of.piece_elements * static_cast<std::uint64_t>(rank());
    return {begin, begin + of.piece_elements};
  }

  /// A group's part of the reduced gradients.
  std::byte* reduced(std::uint32_t unit, std::uint32_t group) {
    return memory + map.units[unit].reduced + reduced_offset(layout(unit), group, policy);
  }
  /// What of it is free between a step and the unit's next reduction.
  std::span<std::byte> idle_memory(std::uint32_t unit) {
    if (!facts[unit].trainable || facts[unit].gradients_in_place) return {};
    const layout::UnitLayout& at = layout(unit);
    return {memory + map.units[unit].reduced, reduced_offset(at, at.group_count, policy)};
  }
  std::byte* moment(std::uint32_t unit, std::uint32_t group, int index) {
    const layout::UnitLayout& at = layout(unit);
    return memory + map.units[unit].moments + moment_offset(at, group, policy) +
           moment_offset(at, at.group_count, policy) * static_cast<std::uint64_t>(index);
  }
  /// Of a group whose tensors have one.
  std::byte* master(std::uint32_t unit, std::uint32_t group) {
    return memory + map.units[unit].master + master_offset(layout(unit), group, policy);
  }

  /// One of the arrays of the step's memory, at an offset that map.step_memory names.
  template <class T>
  T* step_array(std::uint64_t offset) {
    return reinterpret_cast<T*>(memory + map.step + offset);
  }

  DType gradient_dtype(std::uint32_t unit, std::uint32_t group) const {
    return policy.precision.gradient_of(layout(unit).groups[group].dtype);
  }
  DType reduced_dtype(std::uint32_t unit, std::uint32_t group) const {
    return policy.precision.reduced_of(layout(unit).groups[group].dtype);
  }

  /// Throws what a stream's work threw, or that the group was aborted.
  void check() {
    if (!broken.empty()) {
      const std::string what = detail::concat("the step failed (", broken, "): call reset()");
      // The type tells what another rank caused from what this one did.
      if (broken_elsewhere) throw CommunicatorError(mesh_rank(), "", "", what);
      detail::fail("tessera: ", what);
    }
    try {
      backend.check();
    } catch (const CommunicatorError& error) {
      broken = error.what();
      broken_elsewhere = true;
      throw;
    } catch (const std::exception& error) {
      broken = error.what();
      throw;
    }
  }

  void wait_timed(const char* what, std::uint32_t unit, typename B::Event& event) {
    const std::size_t span =
        recorder.begin(Span::wait, what, registry.unit(unit).name, StreamKind::compute);
    backend.wait(compute(), event);
    recorder.end(span);
  }

  /// The unit's piece has changed on compute. Its next gather waits for that, and not for the
  /// updates of the units behind it.
  void note_update(std::uint32_t unit) {
    backend.record(units[unit].updated, compute());
    units[unit].pending_update = PendingUpdate::own;
  }
  /// The pieces of all units have.
  void note_update() {
    backend.record(all_updated, compute());
    for (UnitState<B>& unit : units) unit.pending_update = PendingUpdate::all;
  }
  /// The user may change them on compute from here to the next gather.
  void expect_edit() { edit_expected = true; }
  void wait_for_update(std::uint32_t unit) {
    if (std::exchange(edit_expected, false)) note_update();
    switch (std::exchange(units[unit].pending_update, PendingUpdate::none)) {
      case PendingUpdate::none: return;
      case PendingUpdate::own: return backend.wait(gathering(), units[unit].updated);
      case PendingUpdate::all: return backend.wait(gathering(), all_updated);
    }
  }

  /// Blocks the caller, for no longer than the communicator's time-out where it watches streams: a
  /// collective whose peer is gone does not end by itself.
  void await(typename B::Stream& stream) {
    if constexpr (WatchesStreams<Comm, B>) {
      gather_comm.synchronize(stream, kAwaited);
    } else {
      backend.synchronize(stream);
    }
  }
  void await(typename B::Event& event) {
    if constexpr (WatchesStreams<Comm, B>) {
      gather_comm.synchronize(event, kAwaited);
    } else {
      backend.synchronize(event);
    }
  }

  /// The plan's one allocation. Collective where the communicator has memory of its own.
  void allocate_memory() {
    if constexpr (AllocatesMemory<Comm>) {
      memory = static_cast<std::byte*>(gather_comm.allocate(map.total));
      memory_is_communicators = memory != nullptr;
      if (memory != nullptr && backend.poisons()) backend.fill(compute(), memory, 0xFF, map.total);
    }
    if (memory == nullptr) memory = static_cast<std::byte*>(backend.allocate(map.total));
  }
  void release_memory() {
    if (memory == nullptr) return;
    if constexpr (AllocatesMemory<Comm>) {
      if (memory_is_communicators) {
        gather_comm.release(memory);
        return;
      }
    }
    backend.release(memory, map.total);
  }

  void note_use() {
    const std::uint64_t arena = plan.total_bytes() - slot_bytes + slots.used_bytes();
    if (arena > peak_bytes) peak_bytes = arena;
  }

  static constexpr CollectiveTag kAwaited{CollectiveKind::scalars, "the step"};

  PolicyDescription policy;
  Options options;
  Requirements needs;
  Registry registry;

  // Declared ahead of the backend: streams may still touch events while the backend ends.
  EventPool<B> events;
  std::vector<UnitState<B>> units;
  typename B::Event all_updated;  ///< on compute: all pieces are what they are
  bool edit_expected = false;

  B backend;
  MeshShape mesh_shape;
  MeshPlace place;
  Comm control;  ///< all ranks
  Comm gather_comm;
  Comm reduce_comm;
  Comm replica_comm;  ///< on the reduce stream, behind reduce_comm's
  Comm tensor_comm;   ///< the same, at the end of a step
  SlotArena<B> slots;
  Recorder<B> recorder;

  std::vector<UnitFacts> facts;
  Plan plan;
  MemoryMap map;
  std::byte* memory = nullptr;
  bool memory_is_communicators = false;
  std::uint64_t slot_bytes = 0;
  std::uint64_t peak_bytes = 0;
  std::unique_ptr<NormTree> norm_tree;
  StepTables tables;
  bool materialized = false;
  bool accumulating = false;
  bool evaluating = false;
  std::string broken;             ///< why, when a step has failed and reset() is due
  bool broken_elsewhere = false;  ///< another rank is the cause
};

}  // namespace tessera::engine
