#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tessera/exact/classify.hpp"
#include "tessera/exact/config.hpp"
#include "tessera/exact/lanes.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera {
namespace detail {

/// A host double or float that enters strict arithmetic under StrictRounding.
TESSERA_HD inline StrictDouble strict(double value) noexcept { return {pin(value)}; }
TESSERA_HD inline StrictDouble strict(float value) noexcept {
  return {static_cast<double>(pin(value))};
}
/// The result of strict arithmetic, rounded to fp32 before the StrictRounding ends.
TESSERA_HD inline float rounded(StrictDouble value) noexcept { return pin(value.to_float()); }

inline namespace TESSERA_ISA {

// Named, since nvcc takes a lambda in a requires-expression to be false.
template <class O, class Indices>
struct AppliesTo : std::false_type {};
template <class O, std::size_t... I>
  requires requires(const typename O::Coefficients& coefficients, Lanes<1>& written,
                    const Lanes<1>& read) {
    O::apply(coefficients, written, read, (static_cast<void>(I), written)...);
  }
struct AppliesTo<O, std::index_sequence<I...>> : std::true_type {};

}  // namespace TESSERA_ISA
}  // namespace detail

/// An update rule that treats every element alike, with fp32 state per element:
///
///     struct Signum {                                       // an aggregate of hyperparameters
///       float learning_rate = 1e-3f;
///       float weight_decay = 0;
///       static constexpr int state_count = 1;               // arrays of state, at first all 0
///       static constexpr std::array<const char*, 1> state_names{"momentum"};
///       struct Clock {};                                    // advanced once a step
///       TESSERA_HD void advance(Clock&) const {}
///       struct Coefficients { float learning_rate; };       // what the elements see of a step
///       TESSERA_HD Coefficients coefficients(const Clock&, float rate, float decay) const;
///       const char* validate() const;                       // what is wrong, or null
///       template <class R>                                  // R: Lanes, of any width
///       static TESSERA_HD void apply(const Coefficients&, R& weight, const R& gradient, R& state);
///     };
///
/// `advance` comes before `coefficients` in every step that is not skipped. Both run where the
/// training state is (on the device under CUDA, so that a step needs no answer from it): the types
/// are trivially copyable, and arithmetic that must not depend on flags is StrictDouble's. Learning
/// rate and weight decay are passed to `coefficients`, since schedules and parameter groups change
/// them. `apply` takes one `R&` per state; constants enter it by `R::splat`. Put
/// TESSERA_EXEC_CHECK_DISABLE before its `template` if CUDA compiles it.
template <class O>
concept ElementwiseOptimizer = std::copyable<O> && std::is_trivially_copyable_v<O> &&
    std::default_initializable<typename O::Clock> &&
    std::is_trivially_copyable_v<typename O::Clock> &&
    std::is_trivially_copyable_v<typename O::Coefficients> &&
    requires(const O& optimizer, typename O::Clock& clock, float number) {
  { O::state_count } -> std::convertible_to<int>;
  requires O::state_names.size() == std::size_t{O::state_count};
  { optimizer.learning_rate } -> std::convertible_to<float>;
  { optimizer.weight_decay } -> std::convertible_to<float>;
  optimizer.advance(clock);
  { optimizer.coefficients(clock, number, number) } -> std::same_as<typename O::Coefficients>;
  { optimizer.validate() } -> std::convertible_to<const char*>;
} && detail::AppliesTo<O, std::make_index_sequence<std::size_t{O::state_count}>>::value;

}  // namespace tessera
