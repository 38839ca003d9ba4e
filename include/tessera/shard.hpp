// Shard<Strategy, Offload, Precision, Backend, Optimizer>: the whole sharded model of one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/comm/mesh.hpp"
#include "tessera/engine/core.hpp"
#include "tessera/engine/lease.hpp"
#include "tessera/engine/sizes.hpp"
#include "tessera/exact/digest.hpp"
#include "tessera/optimizer/adamw.hpp"
#include "tessera/policy/offload.hpp"
#include "tessera/policy/precision.hpp"
#include "tessera/policy/strategy.hpp"

namespace tessera {

/// What step() returns.
template <Backend Bk>
class StepTicket {
 public:
  StepTicket(engine::Core<Bk>& core, std::shared_ptr<engine::EnqueuedReport> report)
      : core_(&core), report_(std::move(report)) {}
  /// The step's report. On backends whose step() only enqueues, waits for the step to end; before
  /// the Shard ends, then, and from its thread. Throws what went wrong in the step.
  const StepReport& get() const {
    if (!report_->filled) core_->resolve(*report_);
    return report_->report;
  }

 private:
  engine::Core<Bk>* core_;
  std::shared_ptr<engine::EnqueuedReport> report_;
};

/// Asks backward() for gradient buffers only: nothing is gathered (an embedding needs no weights).
struct GradientsOnly {};
inline constexpr GradientsOnly gradients_only{};

namespace detail {

template <class S, class O, class P, class B, class Opt>
consteval bool check_policies() {
  static_assert(StrategyPolicy<S>,
                "tessera: the first argument of Shard is a strategy: Replicate, Zero1, Zero2, "
                "Zero3<> or ByBudget");
  static_assert(OffloadPolicy<O>,
                "tessera: the second argument of Shard is an offload policy: "
                "OnDevice");
  static_assert(PrecisionPolicy<P>,
                "tessera: the third argument of Shard is a precision: Fp32, "
                "Bf16 or what is made of them");
  static_assert(Backend<B>,
                "tessera: the fourth argument of Shard is a backend: Host, Cuda, CudaNccl or Sim");
  static_assert(ElementwiseOptimizer<Opt>,
                "tessera: the fifth argument of Shard is an element-wise optimizer: AdamW, Lion, "
                "Sgd, or a type with their members");
  return true;
}

template <class Values>
inline constexpr bool is_in_place = false;
template <class Of>
inline constexpr bool is_in_place<InPlace<Of>> = true;

}  // namespace detail

/// The training state of one rank, sharded over the ranks of a mesh.
///
/// Use from one thread: on Host that thread is the compute stream. Every rank constructs, registers
/// and leases the same things in the same order. Ranks that lease in another order, or units of
/// other sizes, are found out by their collectives, which name the first difference; ranks that
/// register other tensors of the same padded sizes are not.
template <class Strategy, class Offload = OnDevice, class Precision = Fp32,
          class BackendType = Host, class Optimizer = AdamW>
class Shard {
  static_assert(detail::check_policies<Strategy, Offload, Precision, BackendType, Optimizer>());

 public:
  using Backend = BackendType;
  using Core = engine::Core<Backend>;

  /// The policy as the engine reads it.
  static constexpr PolicyDescription description() {
    return {Strategy::describe(), Offload::describe(), Precision::describe()};
  }

  /// Collective: the Shards of a mesh are constructed in the same order on all ranks.
  /// Throws Error for options or hyperparameters that make no sense.
  explicit Shard(Mesh<Backend> mesh, const Optimizer& optimizer = {}, Options options = {})
      : core_(std::move(mesh), description(), std::move(options),
              std::make_unique<engine::ElementwiseRule<typename Backend::Runtime, Optimizer,
                                                       Precision::describe().storage()>>(optimizer),
              optimizer.learning_rate) {}

  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  /// Among all ranks of the mesh.
  int rank() const { return core_.context().mesh_rank(); }
  int world_size() const { return core_.context().mesh_shape.size(); }
  const MeshShape& mesh_shape() const { return core_.context().mesh_shape; }

  /// Registers a unit: tensors by lvalue, tensor(pointer, shape), structs with tensors_of(T&), and
  /// frozen, named, no_decay and in_group around them. A tensor that another unit already has is
  /// tied: one parameter, leased with this unit too. Before materialize; touches no tensor memory.
  template <class... Tensors>
  Unit add_unit(std::string_view name, const UnitOptions& options, Tensors&&... tensors) {
    engine::Context<Backend>& context = core_.context();
    if (context.materialized) {
      detail::fail("tessera: add_unit('", name, "') after materialize");
    }
    const std::uint32_t index = context.registry.begin_unit(name, options);
    try {
      for_each_tensor(
          [&](TensorHandle&& handle, TensorOptions&& of_tensor) {
            context.registry.add_tensor(std::move(handle), std::move(of_tensor));
          },
          std::forward<Tensors>(tensors)...);
    } catch (...) {
      context.registry.drop_last_unit();
      throw;
    }
    return {index};
  }
  template <class... Tensors>
    requires(sizeof...(Tensors) == 0 ||
             !(... || std::is_same_v<std::remove_cvref_t<Tensors>, UnitOptions>))
  Unit add_unit(std::string_view name, Tensors&&... tensors) {
    return add_unit(name, UnitOptions{}, std::forward<Tensors>(tensors)...);
  }

  /// Allocates exactly plan() and sets the first values: from_tensors (what the tensors hold, the
  /// same on every rank), from_rank(r) (what one rank's tensors hold; collective), a function
  /// float(const TensorInfo&, std::uint64_t index) of the element's place in the whole tensor, or
  /// in_place(functions that run where the state is). Throws Error where replicas, or ranks of the
  /// tensor axis in what is not sliced, have been given other values. from_rank counts the ranks
  /// of Mesh::data().
  /// From here on no tensor memory is allocated, and a rebound tensor points at null outside
  /// leases. Where it throws, the memory is given back, and it may be called again.
  template <class Values>
  void materialize(Values&& values) {
    if (core_.context().materialized) detail::fail("tessera: materialize was called twice");
    try {
      set_up(values);
    } catch (...) {
      core_.materializing().undo();
      throw;
    }
  }

  /// What materialize allocates and a step sends.
  Plan plan() { return plan(mesh_shape()); }
  /// The same for another number of ranks on the shard axis alone: arithmetic only.
  Plan plan(int world) { return plan(MeshShape{.shard = world}); }
  /// And for another mesh, with this rank's tensors as they are.
  Plan plan(const MeshShape& mesh) {
    double ranks = 1;  // which does not overflow
    bool fits = true;
    for (const int axis : {mesh.replicate, mesh.shard, mesh.tensor}) {
      ranks *= axis;
      fits = fits && axis >= 1 && ranks <= engine::kMostRanks;
    }
    if (!fits) {
      detail::fail("tessera: plan(", mesh.describe(), "): there must be 1 to ", engine::kMostRanks,
                   " ranks");
    }
    engine::Context<Backend>& context = core_.context();
    engine::check_size(context.registry, context.options, context.needs.moments, mesh);
    engine::Registry registry = context.registry;
    registry.lay_out(mesh);
    return engine::Planner(registry, context.policy, context.options, context.needs, mesh)
        .plan()
        .first;
  }

  /// The unit's full parameters, until the lease ends; the next ones are already being gathered.
  ForwardLease<Backend> forward(Unit unit, const Cost& cost = {}) {
    check_unit(unit);
    ForwardLease<Backend> lease(core_, unit.index);
    core_.context().backend.compute(cost);
    return lease;
  }
  /// The unit's full parameters and gradient buffers, until the lease ends; then the reduction is
  /// in flight.
  BackwardLease<Backend, Precision> backward(Unit unit, const Cost& cost = {}) {
    check_unit(unit);
    BackwardLease<Backend, Precision> lease(core_, unit.index, true);
    core_.context().backend.compute(cost);
    return lease;
  }
  BackwardLease<Backend, Precision> backward(Unit unit, GradientsOnly) {
    check_unit(unit);
    return BackwardLease<Backend, Precision>(core_, unit.index, false);
  }

  /// A scope without reductions; see Options::accumulation.
  Accumulating<Backend> accumulate() { return Accumulating<Backend>(core_); }
  /// A scope of forward leases that are no part of a step.
  Evaluating<Backend> evaluate() { return Evaluating<Backend>(core_); }
  /// Reduces what accumulate() left unreduced; nothing if there is nothing. Collective.
  void reduce_gradients() { core_.reduce_gradients(); }
  /// Gives a unit's gathered parameters back ahead of its rule.
  void reshard(Unit unit) {
    check_unit(unit);
    core_.reshard(unit.index);
  }

  /// Ends the step: all ranks agree on the norm and on inf and NaN before anything is changed, then
  /// each updates its pieces. Error, with nothing changed, while a lease or a scope is open or
  /// gradients are unreduced. Collective.
  StepTicket<Backend> step() { return StepTicket<Backend>(core_, core_.step()); }

  /// The learning rate of the steps to come. Every rank sets the same: each updates its own pieces
  /// with its own rate, so that ranks which differ (a scheduler fed with a rank's own loss) train
  /// on, to another model or, under Replicate, to several. Nothing compares the rates; under
  /// Replicate digests differ.
  void set_learning_rate(float rate) { core_.set_learning_rate(rate); }

  /// After an exception left a lease, or the group was aborted: back to the last step's state.
  /// Collective; leases must have ended.
  void reset() { core_.reset(); }
  /// Fails the other ranks' collectives, with this reason.
  void abort(const std::string& reason) { core_.abort(reason); }

  /// What add_unit recorded, in the order of registration.
  std::vector<TensorInfo> tensors() const {
    std::vector<TensorInfo> all;
    for (const auto& tensor : core_.context().registry.tensors()) all.push_back(tensor.info);
    return all;
  }

  /// A tensor's full state as floats. Collective; outside leases.
  template <class T>
  std::vector<float> full(State state, T&& tensor) {
    const engine::TensorRecord& record = record_of(tensor);
    core_.prepare_read(state);
    return core_.states().to_floats(state, record, core_.states().full(state, record));
  }
  /// A parameter's bytes in its own type. Collective.
  template <class T>
  std::vector<std::byte> full_bytes(T&& tensor) {
    return core_.states().full(State::parameter(), record_of(tensor));
  }
  /// Sets a tensor's state from its full values, the same on every rank: each takes its part.
  /// Collective; outside leases.
  template <class T>
  void set_full(State state, T&& tensor, std::span<const float> values) {
    const engine::TensorRecord& record = record_of(tensor);
    core_.set_full(state, record, values);
  }
  /// This rank's part of an fp32 state, to be read or edited in place outside leases: a gradient
  /// between close and step(), weights or moments between steps. Where the master is not the
  /// parameter itself, an edit of it reaches the parameter with the next step. All ranks make the
  /// same calls; a gradient that still waits in a bucket is reduced first. On CUDA it is device
  /// memory, to be read and edited on the compute stream.
  template <class T>
  LocalState local(State state, T&& tensor) {
    const engine::TensorRecord& record = record_of(tensor);
    core_.prepare_read(state);
    core_.states().check(state, record);
    require_fp32(state, record);
    core_.prepare_edit(state, record);
    const layout::Range range = core_.states().held(state, record);
    auto* data = reinterpret_cast<float*>(core_.states().address(state, record));
    return {{data, static_cast<std::size_t>(range.size())}, range.begin};
  }
  /// This rank's memory for the unit's reduced gradients, which nothing uses from step() to the
  /// close of the unit's first backward lease after it: the caller may keep there, on the compute
  /// stream, what lives as long, such as the unit's own activations. What it writes replaces the
  /// gradients that full() and local() would give. Empty where gradients are written there
  /// directly, and for frozen units. Aligned to 128 bytes on devices.
  std::span<std::byte> idle_memory(Unit unit) {
    core_.require_materialized();
    check_unit(unit);
    return core_.context().idle_memory(unit.index);
  }
  /// The unreduced gradient of a tensor whose unit was leased inside accumulate(), to be read or
  /// edited in place; it keeps its address until it is reduced. On CUDA it is device memory, to be
  /// read and edited on the compute stream.
  template <class T>
  auto pending_gradient(T& tensor) {
    using E = typename Precision::template gradient_element<element_of<T&>>;
    const engine::TensorRecord& record = record_of(tensor);
    if (!core_.context().units[record.unit].gradients_held) {
      detail::fail("tessera: pending_gradient(): '", record.info.name,
                   "' has no unreduced gradient");
    }
    return std::span<E>(reinterpret_cast<E*>(core_.reducing().gradient(record)), record.elements);
  }

  /// A hash of the full parameters and master weights, unpadded, in the order of registration, and
  /// over the ranks of the tensor axis: equal on all ranks. Collective.
  std::uint64_t parameters_digest() {
    Digest digest;
    for (const engine::TensorRecord& record : core_.context().registry.tensors()) {
      const std::vector<std::byte> bytes = core_.states().full(State::parameter(), record);
      if (record.info.dtype == DType::f32) {
        digest.update(reinterpret_cast<const float*>(bytes.data()), record.elements);
      } else if (record.info.dtype == DType::bf16) {
        digest.update(reinterpret_cast<const bf16*>(bytes.data()), record.elements);
      } else {
        digest.update(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
      }
      if (core_.states().has_master(record)) {
        add_floats(digest, State::master(), record);
      }
    }
    return core_.states().over_slices(digest.value());
  }
  /// The same of the moments.
  std::uint64_t moments_digest() {
    Digest digest;
    for (const engine::TensorRecord& record : core_.context().registry.tensors()) {
      if (!record.info.trainable) continue;
      for (int m = 0; m < core_.context().needs.moments; ++m) {
        add_floats(digest, State::moment(m), record);
      }
    }
    return core_.states().over_slices(digest.value());
  }

  /// How gathers and reductions travel between ranks, and why not otherwise: a sentence or two, or
  /// nothing where there is nothing to say.
  std::string transport() const {
    if constexpr (DescribesTransport<typename Backend::Communicator>) {
      return core_.context().gather_comm.transport_note();
    } else {
      return {};
    }
  }

  /// For the library's own parts that work on a whole Shard, such as CUDA graphs.
  Core& core() { return core_; }

  /// What ran on the streams in the steps so far; Options::trace.
  const std::vector<TraceEvent>& trace() const { return core_.context().recorder.trace(); }

 private:
  void require_fp32(State state, const engine::TensorRecord& record) {
    const engine::States<Backend>& states = core_.states();
    const char* const what = engine::States<Backend>::name_of(state);
    const DType dtype = states.dtype(state, record);
    if (dtype != DType::f32) {
      const bool has_another = state.kind == State::Kind::parameter && states.has_master(record) &&
                               !states.is_split(record);
      detail::fail("tessera: local(): the ", what, " '", record.info.name, "' is ", dtype,
                   has_another ? ": edit its master" : ": use full() and set_full()");
    }
    if (state.kind == State::Kind::master && states.is_split(record)) {
      detail::fail("tessera: local(): the ", what, " '", record.info.name,
                   "' is in two halves: use full() and set_full()");
    }
  }

  template <class Values>
  void set_up(Values& values) {
    core_.materializing().allocate();
    if constexpr (std::is_same_v<std::remove_cvref_t<Values>, FromTensors>) {
      core_.materializing().take_from_tensors();
    } else if constexpr (std::is_same_v<std::remove_cvref_t<Values>, FromRank>) {
      core_.materializing().take_from_rank(values.root);
    } else if constexpr (detail::is_in_place<std::remove_cvref_t<Values>>) {
      core_.materializing().generate_in_place(values.of);
    } else {
      static_assert(std::is_invocable_r_v<float, Values&, const TensorInfo&, std::uint64_t>,
                    "tessera: materialize takes from_tensors, from_rank(r), in_place(f), or a "
                    "function float(const TensorInfo&, std::uint64_t index)");
      core_.materializing().generate(values);
    }
    core_.check_equal();
    core_.start();
  }

  void check_unit(Unit unit) const {
    if (unit.index < core_.context().registry.units().size()) return;
    detail::fail("tessera: there is no unit ", unit.index, ": use what add_unit returned");
  }

  void add_floats(Digest& digest, State state, const engine::TensorRecord& record) {
    const std::vector<float> values =
        core_.states().to_floats(state, record, core_.states().full(state, record));
    digest.update(values.data(), record.elements);
  }

  /// By the tensor, by the pointer variable given to tensor(pointer, shape), by name, or by what
  /// tensors() lists.
  template <class T>
  const engine::TensorRecord& record_of(T& tensor) {
    core_.require_materialized();
    const engine::Registry& registry = core_.context().registry;
    using Plain = std::remove_cvref_t<T>;
    if constexpr (std::is_same_v<Plain, TensorInfo>) {
      if (tensor.id < registry.tensors().size() &&
          registry.tensor(tensor.id).info.name == tensor.name) {
        return registry.tensor(tensor.id);
      }
      detail::fail("tessera: tensor ", tensor.id, ", '", tensor.name,
                   "', is none of this Shard's: pass what its own tensors() lists");
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      for (const engine::TensorRecord& record : registry.tensors()) {
        if (record.info.name == std::string_view(tensor)) return record;
      }
      detail::fail("tessera: there is no tensor named '", std::string_view(tensor), "'");
    } else {
      return registry.tensor(registry.find(identity_of(tensor)));
    }
  }

  Core core_;
};

}  // namespace tessera
