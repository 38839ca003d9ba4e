#pragma once

#include <array>

#include "tessera/optimizer/optimizer.hpp"

namespace tessera {

/// Adam with decoupled weight decay: Loshchilov and Hutter, "Decoupled weight decay
/// regularization", ICLR 2019; the formulae of torch.optim.AdamW without amsgrad:
///
///     m = beta1 m + (1 - beta1) g;    v = beta2 v + (1 - beta2) g^2
///     w = w - (lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon) + lr weight_decay w)
///
/// The decay is added to the update, where torch multiplies w by 1 - lr weight_decay beforehand:
/// in fp32 that factor would be off by up to 6e-8, as much as the decay itself at small rates.
struct AdamW {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;

  static constexpr int state_count = 2;
  static constexpr std::array<const char*, 2> state_names{"exp_avg", "exp_avg_sq"};

  /// beta^t by recurrence, since pow differs between maths libraries.
  struct Clock {
    double beta1_power = 1;
    double beta2_power = 1;
  };

  TESSERA_HD void advance(Clock& clock) const {
    const StrictRounding guard;
    clock.beta1_power = detail::pin((detail::strict(clock.beta1_power) * detail::strict(beta1)).x);
    clock.beta2_power = detail::pin((detail::strict(clock.beta2_power) * detail::strict(beta2)).x);
  }

  struct Coefficients {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float epsilon;
    float step_size;   ///< lr / (1 - beta1^t)
    float root_scale;  ///< 1 / sqrt(1 - beta2^t)
    float decay;       ///< lr weight_decay
  };

  /// Computed in double, each rounded once to fp32. Needs a clock that was advanced: 1 - beta^0 is
  /// 0.
  TESSERA_HD Coefficients coefficients(const Clock& clock, float rate, float decay_rate) const {
    const StrictRounding guard;
    const StrictDouble one = detail::strict(1.0);
    const StrictDouble lr = detail::strict(rate);
    const StrictDouble b1 = detail::strict(beta1);
    const StrictDouble b2 = detail::strict(beta2);
    const StrictDouble correction1 = one - detail::strict(clock.beta1_power);
    const StrictDouble correction2 = one - detail::strict(clock.beta2_power);
    return {.beta1 = beta1,
            .one_minus_beta1 = detail::rounded(one - b1),
            .beta2 = beta2,
            .one_minus_beta2 = detail::rounded(one - b2),
            .epsilon = epsilon,
            .step_size = detail::rounded(lr / correction1),
            .root_scale = detail::rounded(one / sqrt(correction2)),
            .decay = detail::rounded(lr * detail::strict(decay_rate))};
  }

  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  static TESSERA_HD void apply(const Coefficients& c, R& w, const R& g, R& m, R& v) {
    m = R::splat(c.beta1) * m + R::splat(c.one_minus_beta1) * g;
    v = R::splat(c.beta2) * v + R::splat(c.one_minus_beta2) * g * g;
    const R root = sqrt(v) * R::splat(c.root_scale) + R::splat(c.epsilon);
    w = w - (R::splat(c.step_size) * (m / root) + R::splat(c.decay) * w);
  }

  /// What is wrong with the hyperparameters, or null.
  constexpr const char* validate() const {
    if (!detail::is_non_negative(learning_rate)) return "AdamW: learning_rate is not in [0, inf)";
    if (!detail::is_rate(beta1)) return "AdamW: beta1 is not in [0, 1)";
    if (!detail::is_rate(beta2)) return "AdamW: beta2 is not in [0, 1)";
    if (!detail::is_non_negative(epsilon)) return "AdamW: epsilon is not in [0, inf)";
    if (!detail::is_non_negative(weight_decay)) return "AdamW: weight_decay is not in [0, inf)";
    return nullptr;
  }
};

static_assert(ElementwiseOptimizer<AdamW>);

}  // namespace tessera
