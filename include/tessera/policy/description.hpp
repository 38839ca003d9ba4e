// What a policy type is turned into, once, at compile time. The engine reads only this: the names
// of strategies, tiers and precisions occur under policy/ and nowhere else.
#pragma once

#include <cstdint>

#include "tessera/tensor/dtype.hpp"

namespace tessera {

/// When a unit's gathered parameters are given back.
enum class Reshard : std::uint8_t {
  after_forward,   ///< ZeRO-3, FSDP2's reshard_after_forward=True: gathered again for backward
  after_backward,  ///< FSDP2's False: gathered once a micro-step
  after_step,      ///< kept until the optimizer changes them: gathered once a step
  never,           ///< complete on every rank at all times: nothing to gather
};

/// Where a kind of state lives between uses.
enum class Tier : std::uint8_t { device, host, nvme };

struct StrategyDescription {
  const char* name = "";
  bool shard_optimizer = false;   ///< master weights, moments and reduced gradients are pieces
  bool shard_gradients = false;   ///< full gradient buffers are slots, not a persistent copy
  bool shard_parameters = false;  ///< between uses only the piece persists
  Reshard reshard = Reshard::never;
  bool by_budget = false;  ///< units stay gathered (after_step) while Options::gathered_bytes lasts

  friend constexpr bool operator==(const StrategyDescription&,
                                   const StrategyDescription&) = default;
};

struct OffloadDescription {
  const char* name = "";
  Tier parameters = Tier::device;
  Tier gradients = Tier::device;
  Tier optimizer = Tier::device;

  friend constexpr bool operator==(const OffloadDescription&, const OffloadDescription&) = default;
};

/// How a precision keeps what the optimizer works on, of tensors that are not f32. Policies that
/// agree in it share their kernels.
struct StateStorage {
  DType reduced = DType::f32;

  friend constexpr bool operator==(const StateStorage&, const StateStorage&) = default;
};

struct PrecisionDescription {
  const char* name = "";
  /// Trainable tensors have this element type, or f32 (kept in f32: norms, adapters).
  DType parameter = DType::f32;
  /// The gradient buffer's type of tensors of type `parameter`; f32 tensors have f32 gradients.
  /// It is also what the reduction carries; the sum over ranks is always fp32.
  DType gradient = DType::f32;
  /// What the sum is kept in, for tensors of type `parameter`; f32 tensors keep f32.
  DType reduced = DType::f32;

  constexpr bool trains(DType dtype) const { return dtype == parameter || dtype == DType::f32; }
  constexpr DType gradient_of(DType dtype) const {
    return dtype == parameter ? gradient : DType::f32;
  }
  constexpr DType reduced_of(DType dtype) const {
    return dtype == parameter ? reduced : DType::f32;
  }
  constexpr StateStorage storage() const { return {reduced}; }
  /// A tensor whose own type cannot hold the update in full keeps an fp32 master beside it.
  static constexpr bool has_master(DType dtype) { return dtype != DType::f32; }

  friend constexpr bool operator==(const PrecisionDescription&,
                                   const PrecisionDescription&) = default;
};

struct PolicyDescription {
  StrategyDescription strategy;
  OffloadDescription offload;
  PrecisionDescription precision;

  friend constexpr bool operator==(const PolicyDescription&, const PolicyDescription&) = default;
};

}  // namespace tessera
