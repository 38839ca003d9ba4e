// The model sharded: its tensors as units of a tessera::Shard, and its passes inside leases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include <tessera/tessera.hpp>

#include "batch.hpp"
#include "element.hpp"
#include "loss_sum.hpp"
#include "tensors.hpp"

namespace gpt {

/// The weights' pointers and the two kinds of unit: the root (embedding, final norm and so the tied
/// head), whose lease stays open around a pass, and the blocks.
template <class P>
struct Units {
  EmbeddingWeights<P> embedding;
  HeadWeights<P> head;
  std::vector<BlockWeights<P>> blocks;
  tessera::Unit root_unit;
  std::vector<tessera::Unit> block_units;
  std::vector<TensorInfo> made;  // how each tensor starts, in the order of registration

  /// Registers every tensor with `model`, which may be of any policy and backend; of what ranks
  /// compute together, the part of `config.tensor`.
  template <class Model>
  void add_to(Model& model, const Config& config) {
    const EmbeddingTensors<TensorInfo> e = embedding_info(config);
    const HeadTensors<TensorInfo> h = head_info(config);
    const auto note = [this](const TensorInfo& info) { made.push_back(info); };
    zip(note, e);
    note(h.norm_w);
    note(h.norm_b);
    root_unit =
        model.add_unit("root", tessera::UnitOptions{.outer = true},
                       tensor(embedding.token, e.token), tensor(embedding.position, e.position),
                       tensor(head.norm_w, h.norm_w), tensor(head.norm_b, h.norm_b));
    blocks.assign(config.layers, {});
    for (std::size_t l = 0; l < config.layers; ++l) {
      const BlockTensors<TensorInfo> i = block_info(config);
      BlockWeights<P>& w = blocks[l];
      zip(note, i);
      block_units.push_back(model.add_unit(
          "block" + std::to_string(l), tensor(w.ln1_w, i.ln1_w), tensor(w.ln1_b, i.ln1_b),
          tensor(w.qkv_w, i.qkv_w), tensor(w.qkv_b, i.qkv_b), tensor(w.proj_w, i.proj_w),
          tensor(w.proj_b, i.proj_b), tensor(w.ln2_w, i.ln2_w), tensor(w.ln2_b, i.ln2_b),
          tensor(w.fc_w, i.fc_w), tensor(w.fc_b, i.fc_b), tensor(w.fc_proj_w, i.fc_proj_w),
          tensor(w.fc_proj_b, i.fc_proj_b)));
    }
  }

 private:
  auto tensor(P*& pointer, const TensorInfo& info) {
    // Not noted in `made` here: arguments are evaluated in no particular order.
    auto named = tessera::named(info.name, tessera::tensor(pointer, {info.rows, info.columns}));
    auto cut = info.sliced ? tessera::sliced(info.slice, named) : named;
    return info.decays ? cut : tessera::no_decay(cut);
  }
};

/// One rank's model. `Model` is a tessera::Shard with parameters of type P, `Platform` what they
/// are computed with: see host_platform.hpp. First values are those of the same whole model,
/// whatever part of it the rank has.
template <class Platform, class Model, Element P>
class ShardedModel {
 public:
  /// `axis`, which must outlive the model, is of the same config and as many sequences.
  ShardedModel(Model& model, Units<P>& units, typename Platform::Axis& axis, const Config& config,
               std::size_t sequences, bool recompute, std::uint64_t seed)
      : model_(model),
        config_(config),
        units_(units),
        transformer_(Platform::template transformer<P>(config, sequences, recompute, axis)) {
    units_.add_to(model, config);
    model.materialize([&](const tessera::TensorInfo& info, std::uint64_t index) {
      const TensorInfo& how = units_.made[info.id];
      return how.fill + how.deviation * tessera::random_normal(seed, info.id, index);
    });
  }

  /// Forward and backward of one micro-step. `scale`: what the sum of its losses is multiplied by.
  void micro_step(const Batch& batch, float scale) {
    forward(batch);
    auto root = model_.backward(units_.root_unit);
    transformer_.head_forward_backward(head(), head_gradients(root), batch.targets.data(), scale);
    for (std::size_t l = config_.layers; l-- > 0;) {
      auto lease = model_.backward(units_.block_units[l]);
      BlockGradients<P> gradients;
      zip([&](P*& weights, Gradient<P>& to) { to = gradient(lease, weights); }, units_.blocks[l],
          gradients);
      transformer_.block_backward(l, units_.blocks[l], gradients);
    }
    EmbeddingGradients<P> gradients;
    zip([&](P*& weights, Gradient<P>& to) { to = gradient(root, weights); }, units_.embedding,
        gradients);
    transformer_.embed_backward(gradients, batch.tokens.data());
    root.close();
  }

  /// The loss alone; inside Shard::evaluate.
  void loss(const Batch& batch) {
    auto root = run(batch);
    transformer_.head_loss(head(), batch.targets.data());
  }
  /// What the losses since the last call add up to. On a device, waits for them.
  LossSum take_loss() { return transformer_.take_loss(); }

  /// logits[context, vocabulary] of one sequence; inside Shard::evaluate.
  const float* logits(const Batch& batch) {
    transformer_.use_batch(1);
    auto root = run(batch);
    return transformer_.head_logits(head());
  }

 private:
  using Root = decltype(std::declval<Model&>().forward(tessera::Unit{}));

  Root run(const Batch& batch) {
    Root root = model_.forward(units_.root_unit);
    transformer_.embed_forward(units_.embedding, batch.tokens.data());
    for (std::size_t l = 0; l < config_.layers; ++l) {
      auto lease = model_.forward(units_.block_units[l]);
      transformer_.block_forward(l, units_.blocks[l]);
    }
    return root;
  }
  void forward(const Batch& batch) { auto root = run(batch); }

  HeadWeights<P> head() const {
    return {units_.head.norm_w, units_.head.norm_b, units_.embedding.token};
  }
  template <class Lease>
  HeadGradients<P> head_gradients(Lease& root) {
    return {gradient(root, units_.head.norm_w), gradient(root, units_.head.norm_b),
            gradient(root, units_.embedding.token)};
  }
  template <class Lease>
  static Gradient<P> gradient(Lease& lease, P*& weights) {
    const tessera::Gradient<P> buffer = lease.gradient(weights);
    return {buffer.data, buffer.accumulate};
  }

  Model& model_;
  Config config_;
  Units<P>& units_;
  typename Platform::template Transformer<P> transformer_;
};

}  // namespace gpt
