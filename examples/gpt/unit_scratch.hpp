// fp32 stand-ins for a unit whose weights and gradients are stored in 16 bits.
#pragma once

#include <algorithm>
#include <cstddef>

#include "config.hpp"
#include "element.hpp"
#include "tensors.hpp"

namespace gpt {

inline EmbeddingTensors<TensorInfo> info_of(const Config& c, const EmbeddingTensors<float*>&) {
  return embedding_info(c);
}
inline BlockTensors<TensorInfo> info_of(const Config& c, const BlockTensors<float*>&) {
  return block_info(c);
}
inline HeadTensors<TensorInfo> info_of(const Config& c, const HeadTensors<float*>&) {
  return head_info(c);
}

/// Weights are widened before a unit's kernels, which write fp32 gradients; these are rounded, or
/// added and rounded, into the real ones afterwards. One scratch, as large as the largest unit,
/// serves all of them in turn. `Conversion` is what moves elements: HostConversion, or one that
/// does so where the weights are.
template <Element P, class Conversion = HostConversion>
class UnitScratch {
 public:
  explicit UnitScratch(const Config& config, Conversion conversion = {})
      : config_(config), conversion_(conversion) {
    largest_ = std::max(
        {total(block_info(config)), total(embedding_info(config)), total(head_info(config))});
  }

  template <class AnyArena>
  void carve(AnyArena& arena) {
    weights_ = arena.take(largest_);
    gradients_ = arena.take(largest_);
  }

  /// The unit's weights in fp32.
  template <template <class> class Tensors>
  Tensors<const float*> widened(const Tensors<P*>& unit) {
    Tensors<const float*> wide{};
    float* to = weights_;
    walk<Tensors>(
        [&](const TensorInfo& info, P* from, const float*& result) {
          conversion_.widen(from, info.size(), to);
          result = to;
          to += info.size();
        },
        unit, wide);
    return wide;
  }

  /// Where the kernels shall write the unit's gradients.
  template <template <class> class Tensors>
  Tensors<Gradient<float>> targets(const Tensors<Gradient<P>>& unit) {
    Tensors<Gradient<float>> wide{};
    float* to = gradients_;
    walk<Tensors>(
        [&](const TensorInfo& info, const Gradient<P>&, Gradient<float>& result) {
          result = {to, false};
          to += info.size();
        },
        unit, wide);
    return wide;
  }

  /// Rounds what the kernels wrote into the unit's gradients.
  template <template <class> class Tensors>
  void deliver(const Tensors<Gradient<P>>& unit) {
    const float* from = gradients_;
    walk<Tensors>(
        [&](const TensorInfo& info, const Gradient<P>& to) {
          conversion_.narrow(from, info.size(), to.accumulate, to.data);
          from += info.size();
        },
        unit);
  }

 private:
  template <template <class> class Tensors, class F, class... Ts>
  void walk(F&& f, Ts&... structs) const {
    const Tensors<TensorInfo> info = info_of(config_, Tensors<float*>{});
    zip(f, info, structs...);
  }

  template <class Infos>
  static std::size_t total(const Infos& infos) {
    std::size_t elements = 0;
    zip([&](const TensorInfo& info) { elements += info.size(); }, infos);
    return elements;
  }

  Config config_;
  Conversion conversion_;
  std::size_t largest_ = 0;
  float* weights_ = nullptr;
  float* gradients_ = nullptr;
};

/// fp32 weights are used where they are.
template <class Conversion>
class UnitScratch<float, Conversion> {
 public:
  explicit UnitScratch(const Config&, Conversion = {}) {}

  template <class AnyArena>
  void carve(AnyArena&) {}

  template <template <class> class Tensors>
  Tensors<const float*> widened(const Tensors<float*>& unit) {
    Tensors<const float*> same{};
    zip([](float* const& from, const float*& to) { to = from; }, unit, same);
    return same;
  }

  template <template <class> class Tensors>
  const Tensors<Gradient<float>>& targets(const Tensors<Gradient<float>>& unit) {
    return unit;
  }

  template <class Unit>
  void deliver(const Unit&) {}
};

}  // namespace gpt
