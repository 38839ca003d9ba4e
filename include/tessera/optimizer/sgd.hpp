#pragma once

#include <array>

#include "tessera/optimizer/optimizer.hpp"

namespace tessera {

/// Stochastic gradient descent with momentum, as torch.optim.SGD without dampening; `nesterov` is
/// after Sutskever et al., "On the importance of initialization and momentum in deep learning",
/// ICML 2013. The decay is coupled, part of the gradient:
///
///     d = g + weight_decay w;    b = momentum b + d
///     w = w - lr (nesterov ? d + momentum b : b)
///
/// b starts at 0, so the first step's b is d. The buffer exists without momentum too.
struct Sgd {
  float learning_rate = 1e-3f;
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  bool nesterov = false;

  static constexpr int state_count = 1;
  static constexpr std::array<const char*, 1> state_names{"momentum_buffer"};

  struct Clock {};
  TESSERA_HD void advance(Clock&) const {}

  struct Coefficients {
    float learning_rate;
    float momentum;
    float weight_decay;
    bool nesterov;
  };

  TESSERA_HD Coefficients coefficients(const Clock&, float rate, float decay_rate) const {
    return {.learning_rate = rate,
            .momentum = momentum,
            .weight_decay = decay_rate,
            .nesterov = nesterov};
  }

  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  static TESSERA_HD void apply(const Coefficients& c, R& w, const R& g, R& buffer) {
    const R mu = R::splat(c.momentum);
    const R decayed = g + R::splat(c.weight_decay) * w;
    buffer = mu * buffer + decayed;
    R direction = buffer;
    if (c.nesterov) direction = decayed + mu * buffer;
    w = w - R::splat(c.learning_rate) * direction;
  }

  /// What is wrong with the hyperparameters, or null.
  constexpr const char* validate() const {
    if (!detail::is_non_negative(learning_rate)) return "Sgd: learning_rate is not in [0, inf)";
    if (!detail::is_rate(momentum)) return "Sgd: momentum is not in [0, 1)";
    if (!detail::is_non_negative(weight_decay)) return "Sgd: weight_decay is not in [0, inf)";
    if (nesterov && detail::bits_of(momentum) << 1 == 0) return "Sgd: nesterov needs momentum > 0";
    return nullptr;
  }
};

static_assert(ElementwiseOptimizer<Sgd>);

}  // namespace tessera
