// Leases: a unit's parameters, and gradient buffers, for as long as the object lives.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <type_traits>
#include <utility>

#include "tessera/engine/core.hpp"
#include "tessera/policy/precision.hpp"
#include "tessera/tensor/arguments.hpp"

namespace tessera {

/// A tensor's full gradient buffer, as BackwardLease::gradient hands it out.
template <class E>
struct Gradient {
  E* data = nullptr;
  std::uint64_t size = 0;
  DType dtype = DType::f32;  ///< of the buffer; E is void where the tensor's type is
  /// The buffer holds contributions: add to it. False: write it, it holds nothing.
  bool accumulate = false;

  operator E*() const { return data; }
  auto span() const requires(!std::is_void_v<E>) { return std::span<E>(data, size); }
};

/// What the two kinds of lease share. Move-only; ends once, before its Shard does. The destructor
/// neither throws nor hangs: what went wrong is thrown by the next call on the Shard, or by
/// close(). A lease that is left by an exception sends nothing and aborts the group, so that the
/// other ranks fail at once; reset() on all ranks makes the Shards usable again.
template <Backend Bk>
class Lease {
 public:
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Lease& operator=(Lease&&) = delete;

  /// Ends the lease, and throws what its end, or the streams since, ran into.
  void close() {
    if (core_ == nullptr) return;
    engine::Core<Bk>* core = std::exchange(core_, nullptr);
    core->close(unit_, phase_, parameters_);
  }

  /// Ends the lease as an exception would: for leases that are held by something unwinding does not
  /// reach, such as a hook. Sends nothing and aborts the group.
  void abandon() noexcept {
    if (core_ != nullptr) std::exchange(core_, nullptr)->abandon(unit_, phase_);
  }

 protected:
  Lease(engine::Core<Bk>& core, std::uint32_t unit, engine::Phase phase, bool parameters)
      : core_(&core),
        unit_(unit),
        phase_(phase),
        parameters_(parameters),
        exceptions_(std::uncaught_exceptions()) {
    core.open(unit, phase, parameters);
  }
  Lease(Lease&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)),
        unit_(other.unit_),
        phase_(other.phase_),
        parameters_(other.parameters_),
        exceptions_(other.exceptions_) {}

  ~Lease() {
    if (core_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_) {
      abandon();
      return;
    }
    try {
      close();
    } catch (...) {  // kept by the engine for the next call
    }
  }

  engine::Core<Bk>* core_;
  std::uint32_t unit_;
  engine::Phase phase_;
  bool parameters_;
  int exceptions_;
};

/// A unit's full parameters, to compute with.
template <Backend Bk>
class [[nodiscard("give the lease a name: it ends when the object does")]] ForwardLease
    : public Lease<Bk> {
 public:
  ForwardLease(engine::Core<Bk> & core, std::uint32_t unit)
      : Lease<Bk>(core, unit, engine::Phase::forward, true) {}
  ForwardLease(ForwardLease &&) noexcept = default;
};

/// A unit's full parameters and gradient buffers. A gradient that nobody asks for is zero.
template <Backend Bk, PrecisionPolicy Precision>
class [[nodiscard("give the lease a name: it ends when the object does")]] BackwardLease
    : public Lease<Bk> {
 public:
  BackwardLease(engine::Core<Bk> & core, std::uint32_t unit, bool parameters)
      : Lease<Bk>(core, unit, engine::Phase::backward, parameters),
        accumulate_(held(core.context(), unit)) {}
  BackwardLease(BackwardLease &&) noexcept = default;

  /// True if the unit's gradient buffers held contributions when the lease was opened: add to them.
  /// Constant through the lease, and about the unit's own tensors; of a unit that has none, about
  /// those it shares. Gradient::accumulate is exact for each request: for a tensor shared with
  /// another unit, or a gradient that is written in parts.
  bool accumulate() const { return accumulate_; }

  /// The gradient buffer of a tensor of the unit, of the tensor's shape, contiguous. Null for a
  /// tensor without elements. Error for a tensor that is frozen or not in this unit.
  template <class T>
    requires(!std::is_pointer_v<T>)
  auto gradient(T & tensor) {
    using E = typename Precision::template gradient_element<element_of<T&>>;
    return find<E>(identity_of(tensor));
  }
  /// The same for a tensor passed to add_unit by its pointer variable.
  template <class E>
  auto gradient(E * &pointer) {
    return find<typename Precision::template gradient_element<E>>(&pointer);
  }

 private:
  static bool held(const engine::Context<Bk>& context, std::uint32_t unit) {
    const engine::UnitRecord& record = context.registry.unit(unit);
    if (context.facts[unit].trainable || record.borrowed_units.empty()) {
      return context.holds_gradients(unit);
    }
    return context.holds_gradients(record.borrowed_units[0]);
  }

  template <class E>
  Gradient<E> find(const void* identity) {
    if (this->core_ == nullptr) detail::fail("tessera: gradient() of a lease that has ended");
    engine::Context<Bk>& context = this->core_->context();
    const engine::UnitRecord& unit = context.registry.unit(this->unit_);
    if (auto found = find_in<E>(this->unit_, identity); found.second) return found.first;
    for (std::uint32_t owner : unit.borrowed_units) {
      if (auto found = find_in<E>(owner, identity); found.second) return found.first;
    }
    detail::fail("tessera: gradient(): the tensor is not in unit '", unit.name,
                 "': ask the lease of the unit it was added to");
  }

  template <class E>
  std::pair<Gradient<E>, bool> find_in(std::uint32_t u, const void* identity) {
    engine::Context<Bk>& context = this->core_->context();
    const auto& tensors = context.registry.unit(u).tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const engine::TensorRecord& tensor = context.registry.tensor(tensors[i]);
      if (tensor.handle.identity() != identity) continue;
      if (!tensor.info.trainable) {
        detail::fail("tessera: gradient(): tensor '", tensor.info.name, "' is frozen");
      }
      if (tensor.elements == 0) return {{}, true};  // its unit may have no gradients at all
      engine::UnitState<typename Bk::Runtime>& state = context.units[u];
      const bool accumulate = context.holds_gradients(u) || state.written[i];
      state.written[i] = 1;
      auto* data = reinterpret_cast<E*>(this->core_->reducing().gradient(tensor));
      const DType dtype = context.gradient_dtype(u, tensor.placement.group);
      return {{data, tensor.elements, dtype, accumulate}, true};
    }
    return {{}, false};
  }

  bool accumulate_;
};

/// While it lives, backward leases do not reduce: gradients add up in full buffers.
template <Backend Bk>
class [[nodiscard("give the scope a name: it ends when the object does")]] Accumulating {
 public:
  explicit Accumulating(engine::Core<Bk> & core) : core_(&core) { core.begin_accumulation(); }
  Accumulating(Accumulating && other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  Accumulating& operator=(Accumulating&&) = delete;
  ~Accumulating() {
    if (core_ != nullptr) core_->end_accumulation();
  }

 private:
  engine::Core<Bk>* core_;
};

/// While it lives, forward leases are not part of the training step: they follow an order of their
/// own, and nothing stays gathered afterwards that the strategy would give back.
template <Backend Bk>
class [[nodiscard("give the scope a name: it ends when the object does")]] Evaluating {
 public:
  explicit Evaluating(engine::Core<Bk> & core) : core_(&core) { core.begin_evaluation(); }
  Evaluating(Evaluating && other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  Evaluating& operator=(Evaluating&&) = delete;
  ~Evaluating() {
    if (core_ != nullptr) core_->end_evaluation();
  }

 private:
  engine::Core<Bk>* core_;
};

}  // namespace tessera
