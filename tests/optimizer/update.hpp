#pragma once
// Runs an optimizer over arrays, for the tests.

#include <cstdint>
#include <utility>
#include <vector>

#include <tessera/exact/elementwise.hpp>
#include <tessera/optimizer/optimizer.hpp>

template <class O>
struct Apply {
  typename O::Coefficients coefficients;
  template <class R, class... States>
  void operator()(R& w, const R& g, States&... states) const {
    O::apply(coefficients, w, g, states...);
  }
};

/// Weights and states of one optimizer, stepped as a trainer does.
template <tessera::ElementwiseOptimizer O>
class Run {
 public:
  Run(O optimizer, std::vector<float> weights)
      : optimizer_(optimizer), weights_(std::move(weights)) {
    for (auto& state : states_) state.assign(weights_.size(), 0.0f);
  }

  void step(const std::vector<float>& gradient) {
    optimizer_.advance(clock_);
    step(gradient, std::make_index_sequence<std::size_t{O::state_count}>());
  }

  const std::vector<float>& weights() const { return weights_; }
  const std::vector<float>& state(std::size_t i) const { return states_[i]; }

 private:
  template <std::size_t... I>
  void step(const std::vector<float>& gradient, std::index_sequence<I...>) {
    const Apply<O> apply{
        optimizer_.coefficients(clock_, optimizer_.learning_rate, optimizer_.weight_decay)};
    tessera::elementwise(weights_.size(), apply, tessera::InOut<float>{weights_.data()},
                         tessera::In<float>{gradient.data()},
                         tessera::InOut<float>{states_[I].data()}...);
  }

  O optimizer_;
  typename O::Clock clock_;
  std::vector<float> weights_;
  std::vector<float> states_[O::state_count];
};
