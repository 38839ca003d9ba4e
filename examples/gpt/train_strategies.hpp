// From the strategy's name to its type.
#pragma once

#include "train.hpp"
#include "trainer.hpp"

namespace gpt {

template <class Platform, class Strategy, class Precision, class P>
void train(const Options& options, const Text& text, Results& results, Traces& traces) {
  Platform::run_ranks(static_cast<int>(options.ranks), [&](typename Platform::Ranks ranks) {
    Trainer<Platform, Strategy, Precision, P>(options, text, ranks).run(results, traces);
  });
}

template <class Platform, class Precision, class P>
void train_with(const Options& o, const Text& text, Results& results, Traces& traces) {
  using tessera::Reshard;
  switch (o.strategy) {
    case StrategyName::replicate:
      return train<Platform, tessera::Replicate, Precision, P>(o, text, results, traces);
    case StrategyName::zero1:
      return train<Platform, tessera::Zero1, Precision, P>(o, text, results, traces);
    case StrategyName::zero2:
      return train<Platform, tessera::Zero2, Precision, P>(o, text, results, traces);
    case StrategyName::zero3:
      return train<Platform, tessera::Zero3<>, Precision, P>(o, text, results, traces);
    case StrategyName::zero3_keep:
      return train<Platform, tessera::Zero3<Reshard::after_backward>, Precision, P>(
          o, text, results, traces);
  }
}

}  // namespace gpt
