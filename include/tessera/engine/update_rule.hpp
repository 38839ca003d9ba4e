// The optimizer as the engine sees it: one virtual call a range of elements, so that the engine is
// not a template of the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/backend/backend.hpp"
#include "tessera/engine/options.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/elementwise.hpp"
#include "tessera/optimizer/optimizer.hpp"

namespace tessera::engine {

/// The arrays of one range of elements of one tensor.
struct UpdateArrays {
  std::uint64_t elements = 0;
  float* weights = nullptr;          ///< fp32: the master weights, or the parameters themselves
  bf16* parameters = nullptr;        ///< the weights rounded, or null where there are no such
  const float* gradients = nullptr;  ///< reduced, before clipping
  std::vector<float*> moments;
};

template <Runtime B>
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual int moment_count() const = 0;
  virtual const char* moment_name(int index) const = 0;
  /// Begins a step: the optimizer's clock moves on, once for all tensors.
  virtual void advance() = 0;
  virtual void update(B& backend, typename B::Stream& stream, const UpdateArrays& arrays,
                      float clip_factor, float learning_rate, const ParameterGroup& group,
                      bool decay) const = 0;
};

/// w, g, moments... -> the optimizer's rule on the clipped gradient.
template <class Optimizer>
struct UpdateInPlace {
  typename Optimizer::Coefficients coefficients;
  float clip_factor;
  template <class R, class... Moments>
  void operator()(R& weight, const R& gradient, Moments&... moments) const {
    Optimizer::apply(coefficients, weight, gradient * R::splat(clip_factor), moments...);
  }
};

/// The same with the rounded weights as an output.
template <class Optimizer>
struct UpdateAndRound {
  typename Optimizer::Coefficients coefficients;
  float clip_factor;
  template <class R, class... Moments>
  void operator()(R& rounded, R& weight, const R& gradient, Moments&... moments) const {
    Optimizer::apply(coefficients, weight, gradient * R::splat(clip_factor), moments...);
    rounded = weight;
  }
};

template <Runtime B, ElementwiseOptimizer Optimizer>
class ElementwiseRule final : public UpdateRule<B> {
 public:
  explicit ElementwiseRule(const Optimizer& optimizer) : optimizer_(optimizer) {
    if (const char* problem = optimizer.validate()) detail::fail("tessera: ", problem);
  }

  int moment_count() const override { return Optimizer::state_count; }
  const char* moment_name(int index) const override {
    return Optimizer::state_names[static_cast<std::size_t>(index)];
  }
  void advance() override { optimizer_.advance(clock_); }
  void update(B& backend, typename B::Stream& stream, const UpdateArrays& arrays, float clip_factor,
              float learning_rate, const ParameterGroup& group, bool decay) const override {
    const float own_decay = group.weight_decay >= 0 ? group.weight_decay : optimizer_.weight_decay;
    const auto coefficients = optimizer_.coefficients(
        clock_, learning_rate * group.learning_rate_scale, decay ? own_decay : 0.0f);
    update(backend, stream, arrays, clip_factor, coefficients,
           std::make_index_sequence<std::size_t{Optimizer::state_count}>{});
  }

 private:
  template <std::size_t... I>
  void update(B& backend, typename B::Stream& stream, const UpdateArrays& a, float clip_factor,
              const typename Optimizer::Coefficients& coefficients,
              std::index_sequence<I...>) const {
    if (a.parameters == nullptr) {
      backend.transform(stream, a.elements, UpdateInPlace<Optimizer>{coefficients, clip_factor},
                        InOut<float>{a.weights}, In<float>{a.gradients},
                        InOut<float>{a.moments[I]}...);
    } else {
      backend.transform(stream, a.elements, UpdateAndRound<Optimizer>{coefficients, clip_factor},
                        Out<bf16>{a.parameters}, InOut<float>{a.weights}, In<float>{a.gradients},
                        InOut<float>{a.moments[I]}...);
    }
  }

  Optimizer optimizer_;
  typename Optimizer::Clock clock_;
};

}  // namespace tessera::engine
