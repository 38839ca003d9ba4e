#pragma once

#include <array>

#include "tessera/optimizer/optimizer.hpp"

namespace tessera {

/// EvoLved Sign Momentum: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS
/// 2023, algorithm 2:
///
///     w = w - (lr sign(beta1 m + (1 - beta1) g) + lr weight_decay w)
///     m = beta2 m + (1 - beta2) g
///
/// sign(0) is 0, and sign(NaN) is NaN.
struct Lion {
  float learning_rate = 1e-4f;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay = 0.0f;

  static constexpr int state_count = 1;
  static constexpr std::array<const char*, 1> state_names{"exp_avg"};

  struct Clock {};
  TESSERA_HD void advance(Clock&) const {}

  struct Coefficients {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float learning_rate;
    float decay;  ///< lr weight_decay
  };

  /// Computed in double, each rounded once to fp32.
  TESSERA_HD Coefficients coefficients(const Clock&, float rate, float decay_rate) const {
    const StrictRounding guard;
    const StrictDouble one = detail::strict(1.0);
    return {.beta1 = beta1,
            .one_minus_beta1 = detail::rounded(one - detail::strict(beta1)),
            .beta2 = beta2,
            .one_minus_beta2 = detail::rounded(one - detail::strict(beta2)),
            .learning_rate = rate,
            .decay = detail::rounded(detail::strict(rate) * detail::strict(decay_rate))};
  }

  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  static TESSERA_HD void apply(const Coefficients& c, R& w, const R& g, R& m) {
    const R direction = sign(R::splat(c.beta1) * m + R::splat(c.one_minus_beta1) * g);
    w = w - (R::splat(c.learning_rate) * direction + R::splat(c.decay) * w);
    m = R::splat(c.beta2) * m + R::splat(c.one_minus_beta2) * g;
  }

  /// What is wrong with the hyperparameters, or null.
  constexpr const char* validate() const {
    if (!detail::is_non_negative(learning_rate)) return "Lion: learning_rate is not in [0, inf)";
    if (!detail::is_rate(beta1)) return "Lion: beta1 is not in [0, 1)";
    if (!detail::is_rate(beta2)) return "Lion: beta2 is not in [0, 1)";
    if (!detail::is_non_negative(weight_decay)) return "Lion: weight_decay is not in [0, inf)";
    return nullptr;
  }
};

static_assert(ElementwiseOptimizer<Lion>);

}  // namespace tessera
