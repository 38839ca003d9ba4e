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

/// Where a tensor that is not f32 keeps the fp32 weights that the optimizer updates.
enum class Master : std::uint8_t {
  fp32,   ///< in an array beside the parameter
  split,  ///< in two halves, of which the upper is the parameter: see exact/split_float.hpp
  none,   ///< nowhere: the parameter is updated in fp32 and rounded stochastically
};

/// How a precision keeps what the optimizer works on. Policies that agree in it share kernels.
struct StateStorage {
  Master master = Master::fp32;
  DType reduced = DType::f32;
  DType moments = DType::f32;

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
  /// Of all trainable tensors: f32, or bf16, rounded stochastically.
  DType moments = DType::f32;
  Master master = Master::fp32;  ///< of tensors of type `parameter`, unless that is f32

  constexpr bool trains(DType dtype) const { return dtype == parameter || dtype == DType::f32; }
  constexpr DType gradient_of(DType dtype) const {
    return dtype == parameter ? gradient : DType::f32;
  }
  constexpr DType reduced_of(DType dtype) const {
    return dtype == parameter ? reduced : DType::f32;
  }
  constexpr StateStorage storage() const { return {master, reduced, moments}; }
  /// f32 tensors are their own master.
  constexpr Master master_of(DType dtype) const {
    return dtype == DType::f32 ? Master::none : master;
  }
  /// Bytes an element of what is kept of the master beside the parameter.
  constexpr std::uint64_t master_bytes(DType dtype) const {
    switch (master_of(dtype)) {
      case Master::fp32: return 4;
      case Master::split: return 2;
      case Master::none: return 0;
    }
    return 0;
  }

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
