// The optimizer step of the trainer, on the host: the gradient clipped by its global norm, then
// AdamW on fp32 master weights.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace llama_reference {

struct AdamWOptions {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< of matrices; norms have none
  float clip_norm = 1.0f;     ///< 0: no clipping
};

/// In double, over all tensors.
template <class Real>
double global_norm(const std::vector<std::vector<Real>>& gradients) {
  double total = 0.0;
  for (const std::vector<Real>& tensor : gradients) {
    for (const Real value : tensor) {
      total += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  return std::sqrt(total);
}

inline float clip_factor(double norm, float clip_norm) {
  if (!(clip_norm > 0.0f)) return 1.0f;
  const auto factor = static_cast<float>(static_cast<double>(clip_norm) / (norm + 1e-6));
  return factor < 1.0f ? factor : 1.0f;
}

/// One tensor's moments.
class AdamWState {
 public:
  AdamWState(std::size_t size, bool decays) : first_(size), second_(size), decays_(decays) {}

  /// `step` counts from 1.
  void update(const AdamWOptions& o, int step, float clip, const float* gradient, float* weights) {
    const double rate = static_cast<double>(o.learning_rate);
    const auto one_minus = [](float beta) { return 1.0 - static_cast<double>(beta); };
    const auto correction = [&](float beta) {
      return 1.0 - std::pow(static_cast<double>(beta), step);
    };
    const auto rest1 = static_cast<float>(one_minus(o.beta1));
    const auto rest2 = static_cast<float>(one_minus(o.beta2));
    const auto step_size = static_cast<float>(rate / correction(o.beta1));
    const auto root_scale = static_cast<float>(1.0 / std::sqrt(correction(o.beta2)));
    const auto decay = decays_ ? static_cast<float>(rate * static_cast<double>(o.weight_decay)) : 0;
    for (std::size_t i = 0; i < first_.size(); ++i) {
      const float g = gradient[i] * clip;
      first_[i] = o.beta1 * first_[i] + rest1 * g;
      second_[i] = o.beta2 * second_[i] + rest2 * g * g;
      const float root = std::sqrt(second_[i]) * root_scale + o.epsilon;
      weights[i] -= step_size * (first_[i] / root) + decay * weights[i];
    }
  }

 private:
  std::vector<float> first_;
  std::vector<float> second_;
  bool decays_;
};

}  // namespace llama_reference
