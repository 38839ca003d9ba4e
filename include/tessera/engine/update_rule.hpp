// The optimizer as the engine sees it: one virtual call a group of tensors, so that the engine is
// not a template of the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/backend/backend.hpp"
#include "tessera/engine/step_memory.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/elementwise.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/stochastic.hpp"
#include "tessera/exact/strict_double.hpp"
#include "tessera/layout/flat.hpp"
#include "tessera/optimizer/optimizer.hpp"
#include "tessera/policy/description.hpp"
#include "tessera/tensor/dtype.hpp"

namespace tessera::engine {

/// The arrays of one group of a unit, and the ranges of them to update.
struct UpdateArrays {
  std::span<const ElementRange> ranges;
  const ElementRange* resident = nullptr;  ///< the same in the backend's memory
  DType dtype = DType::f32;                ///< of the parameters: f32, or the precision's
  void* parameters = nullptr;
  void* master = nullptr;           ///< what there is of it beside the parameters: see Master
  const void* gradients = nullptr;  ///< reduced, before clipping
  std::vector<void*> moments;
};

/// Where the optimizer finds what a step decided, and keeps its own clock and coefficients.
struct UpdateMemory {
  const StepScalars* scalars = nullptr;
  const UpdateSetting* settings = nullptr;
  std::uint64_t setting_count = 0;
  std::byte* rule = nullptr;  ///< rule_bytes(setting_count), zero at first
  std::uint64_t rounding_seed = 0;
};

template <Runtime B>
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual int moment_count() const = 0;
  virtual const char* moment_name(int index) const = 0;
  virtual float weight_decay() const = 0;
  virtual std::uint64_t rule_bytes(std::uint64_t setting_count) const = 0;
  /// Before the first step: the optimizer's clock begins.
  virtual void start(B& backend, typename B::Stream& stream, const UpdateMemory& memory) const = 0;
  /// Begins a step: the clock moves on, once for all tensors, unless the step is skipped.
  virtual void advance(B& backend, typename B::Stream& stream,
                       const UpdateMemory& memory) const = 0;
  virtual void update(B& backend, typename B::Stream& stream, const UpdateArrays& arrays,
                      const UpdateMemory& memory) const = 0;
};

/// The optimizer's clock, and how often it has moved on.
template <class Optimizer>
struct Ticks {
  typename Optimizer::Clock clock;
  std::uint64_t updates = 0;
};

/// The clock, moved on, and what elements see of the step, by setting.
template <class Optimizer>
struct AdvanceClock {
  Optimizer optimizer;
  const StepScalars* scalars;
  const UpdateSetting* settings;
  std::uint64_t setting_count;
  Ticks<Optimizer>* ticks;
  typename Optimizer::Coefficients* coefficients;

  TESSERA_HD void operator()(std::uint64_t) const {
    if (scalars->skipped != 0) return;
    ++ticks->updates;
    optimizer.advance(ticks->clock);
    for (std::uint64_t i = 0; i != setting_count; ++i) {
      const StrictRounding strict;
      const StrictDouble rate = StrictDouble{static_cast<double>(scalars->learning_rate)} *
                                StrictDouble{static_cast<double>(settings[i].learning_rate_scale)};
      coefficients[i] = optimizer.coefficients(ticks->clock, detail::pin(rate.to_float()),
                                               settings[i].weight_decay);
    }
  }
};

/// w, g, moments... -> the optimizer's rule on the clipped gradient.
template <class Optimizer>
struct UpdateInPlace {
  typename Optimizer::Coefficients coefficients;
  float clip_factor;
  TESSERA_EXEC_CHECK_DISABLE
  template <class R, class... Moments>
  TESSERA_HD void operator()(R& weight, const R& gradient, Moments&... moments) const {
    Optimizer::apply(coefficients, weight, gradient * R::splat(clip_factor), moments...);
  }
};

/// The same with the rounded weights as an output.
template <class Optimizer>
struct UpdateAndRound {
  typename Optimizer::Coefficients coefficients;
  float clip_factor;
  TESSERA_EXEC_CHECK_DISABLE
  template <class R, class... Moments>
  TESSERA_HD void operator()(R& rounded, R& weight, const R& gradient, Moments&... moments) const {
    Optimizer::apply(coefficients, weight, gradient * R::splat(clip_factor), moments...);
    rounded = weight;
  }
};

/// Either of them, with its constants still in the backend's memory.
template <class Optimizer, template <class> class Update>
struct DecidedUpdate {
  const StepScalars* scalars;
  const typename Optimizer::Coefficients* coefficients;
  const Ticks<Optimizer>* ticks;
  std::uint64_t rounding_seed;

  TESSERA_HD RoundingKey rounding_key(std::uint32_t tensor) const {
    return tessera::rounding_key(rounding_seed, tensor, ticks->updates);
  }
  TESSERA_HD bool enabled() const { return scalars->skipped == 0; }
  TESSERA_HD Update<Optimizer> prepare(std::uint32_t setting) const {
    return {coefficients[setting], scalars->clip_factor};
  }
};

/// `storage`: how the precision keeps what is updated. f32 parameters are kept as f32 under all.
template <Runtime B, ElementwiseOptimizer Optimizer, StateStorage storage = StateStorage{}>
class ElementwiseRule final : public UpdateRule<B> {
 public:
  explicit ElementwiseRule(const Optimizer& optimizer) : optimizer_(optimizer) {
    if (const char* problem = optimizer.validate()) detail::fail("tessera: ", problem);
  }

  int moment_count() const override { return Optimizer::state_count; }
  const char* moment_name(int index) const override {
    return Optimizer::state_names[static_cast<std::size_t>(index)];
  }
  float weight_decay() const override { return optimizer_.weight_decay; }
  std::uint64_t rule_bytes(std::uint64_t setting_count) const override {
    return kCoefficients + setting_count * sizeof(Coefficients);
  }
  void start(B& backend, typename B::Stream& stream, const UpdateMemory& memory) const override {
    const Ticks<Optimizer> begin{};
    backend.write(stream, memory.rule, &begin, sizeof begin);
  }
  void advance(B& backend, typename B::Stream& stream, const UpdateMemory& memory) const override {
    backend.for_each(
        stream, 1,
        AdvanceClock<Optimizer>{optimizer_, memory.scalars, memory.settings, memory.setting_count,
                                ticks(memory), coefficients(memory)});
  }
  void update(B& backend, typename B::Stream& stream, const UpdateArrays& arrays,
              const UpdateMemory& memory) const override {
    update(backend, stream, arrays, memory,
           std::make_index_sequence<std::size_t{Optimizer::state_count}>{});
  }

 private:
  using Coefficients = typename Optimizer::Coefficients;
  using Reduced = std::conditional_t<storage.reduced == DType::bf16, bf16, float>;
  static constexpr std::uint64_t kCoefficients = layout::round_up(sizeof(Ticks<Optimizer>), 64);

  static Ticks<Optimizer>* ticks(const UpdateMemory& memory) {
    return reinterpret_cast<Ticks<Optimizer>*>(memory.rule);
  }
  static Coefficients* coefficients(const UpdateMemory& memory) {
    return reinterpret_cast<Coefficients*>(memory.rule + kCoefficients);
  }

  template <std::size_t... I>
  void update(B& backend, typename B::Stream& stream, const UpdateArrays& a,
              const UpdateMemory& memory, std::index_sequence<I...>) const {
    const auto run = [&]<template <class> class Update, class... Refs>(
                         const DecidedUpdate<Optimizer, Update>& f, Refs... refs) {
      backend.transform_ranges(stream, a.ranges, a.resident, f, refs..., moment<I>(a)...);
    };
    const auto in_place = decided<UpdateInPlace>(memory);
    if (a.dtype == DType::f32) {
      run(in_place, InOut<float>{static_cast<float*>(a.parameters)},
          In<float>{static_cast<const float*>(a.gradients)});
      return;
    }
    auto* const parameters = static_cast<bf16*>(a.parameters);
    const In<Reduced> gradients{static_cast<const Reduced*>(a.gradients)};
    if constexpr (storage.master == Master::fp32) {
      run(decided<UpdateAndRound>(memory), Out<bf16>{parameters},
          InOut<float>{static_cast<float*>(a.master)}, gradients);
    } else if constexpr (storage.master == Master::split) {
      run(in_place, InOutSplit{parameters, static_cast<std::uint16_t*>(a.master)}, gradients);
    } else {
      run(in_place, InOutStochastic<0>{parameters}, gradients);
    }
  }

  template <template <class> class Update>
  static DecidedUpdate<Optimizer, Update> decided(const UpdateMemory& memory) {
    return {memory.scalars, coefficients(memory), ticks(memory), memory.rounding_seed};
  }
  template <std::size_t index>
  static auto moment(const UpdateArrays& a) {
    if constexpr (storage.moments == DType::bf16) {
      return InOutStochastic<int{index} + 1>{static_cast<bf16*>(a.moments[index])};
    } else {
      return InOut<float>{static_cast<float*>(a.moments[index])};
    }
  }

  Optimizer optimizer_;
};

}  // namespace tessera::engine
