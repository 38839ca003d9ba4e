// The model sharded: everything that tessera needs to be told is in this file.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include <tessera/tessera.hpp>

#include "config.hpp"
#include "transformer.hpp"
#include "weights.hpp"

namespace llama {

/// `Model` is a tessera::Shard of any policy, with parameters of type T.
template <class Model, class T>
class ShardedLlama {
 public:
  ShardedLlama(Model& model, const Config& config) : model_(model), config_(config) {
    const auto rows = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    const auto matrix = [&](std::string name, T*& to, std::size_t out, std::size_t in,
                            float deviation) {
      first_.push_back({.deviation = deviation});
      return tessera::named(std::move(name), tessera::tensor(to, {rows(out), rows(in)}));
    };
    const auto norm = [&](std::string name, T*& to) {
      first_.push_back({.mean = 1.0f});
      return tessera::no_decay(
          tessera::named(std::move(name), tessera::tensor(to, {rows(config.dim)})));
    };
    const Config& c = config;
    auto embedding = matrix("tok_embeddings", weights_.embedding, c.vocabulary, c.dim, 0.02f);
    embedding_ = model.add_unit("embedding", embedding);
    weights_.layers.resize(c.layers);
    for (std::size_t l = 0; l < c.layers; ++l) {
      LayerWeights<T>& w = weights_.layers[l];
      const std::string unit = "layers." + std::to_string(l);
      auto attention_norm = norm(unit + ".attention_norm", w.attention_norm);
      auto qkv = matrix(unit + ".wqkv", w.qkv, c.qkv(), c.dim, 0.02f);
      auto out = matrix(unit + ".wo", w.out, c.dim, c.attention(), 0.02f);
      auto ffn_norm = norm(unit + ".ffn_norm", w.ffn_norm);
      auto gate_up = matrix(unit + ".w13", w.gate_up, 2 * c.ff, c.dim, 0.02f);
      auto down = matrix(unit + ".w2", w.down, c.dim, c.ff, 0.02f);
      layers_.push_back(model.add_unit(unit, attention_norm, qkv, out, ffn_norm, gate_up, down));
    }
    auto last = norm("norm", weights_.head.norm);
    if (c.tied) {  // the same tensor once more: a parameter of two units
      head_ = model.add_unit(
          "head", last, tessera::tensor(weights_.embedding, {rows(c.vocabulary), rows(c.dim)}));
    } else {
      auto output = matrix("output", weights_.head.output, c.vocabulary, c.dim,
                           1.0f / std::sqrt(static_cast<float>(c.dim)));
      head_ = model.add_unit("head", last, output);
    }
  }

  /// What materialize sets the weights to.
  auto first_values(std::uint64_t seed) const {
    return tessera::in_place([this, seed](const tessera::TensorInfo& info) {
      FirstValue value = first_[info.id];
      value.seed = seed;
      value.tensor = info.id;
      return value;
    });
  }

  /// Where each layer's activations may lie: in the memory of its reduced gradients, of which there
  /// are none while it has activations. With one micro-step a step only.
  LentMemory lent_memory() {
    LentMemory lent;
    for (const tessera::Unit layer : layers_) lent.push_back(model_.idle_memory(layer));
    return lent;
  }

  /// Forward and backward of the batch that was uploaded. `scale`: what each token's loss counts.
  void micro_step(Transformer<T>& transformer, float scale) {
    forward(transformer);
    {
      auto lease = model_.backward(head_);
      transformer.head_forward_backward(
          head(), {gradient(lease, weights_.head.norm), gradient(lease, output())}, scale);
    }
    for (std::size_t l = config_.layers; l-- > 0;) {
      auto lease = model_.backward(layers_[l]);
      LayerWeights<T>& w = weights_.layers[l];
      transformer.layer_backward(
          l, w,
          {gradient(lease, w.attention_norm), gradient(lease, w.qkv), gradient(lease, w.out),
           gradient(lease, w.ffn_norm), gradient(lease, w.gate_up), gradient(lease, w.down)});
    }
    auto lease = model_.backward(embedding_, tessera::gradients_only);
    transformer.embed_backward(gradient(lease, weights_.embedding));
    lease.close();
  }

  /// The loss alone; inside Shard::evaluate.
  void loss(Transformer<T>& transformer) {
    forward(transformer);
    auto lease = model_.forward(head_);
    transformer.head_loss(head());
  }

 private:
  void forward(Transformer<T>& transformer) {
    {
      auto lease = model_.forward(embedding_);
      transformer.embed_forward(weights_.embedding);
    }
    for (std::size_t l = 0; l < config_.layers; ++l) {
      auto lease = model_.forward(layers_[l]);
      transformer.layer_forward(l, weights_.layers[l]);
    }
  }
  T*& output() { return config_.tied ? weights_.embedding : weights_.head.output; }
  HeadWeights<T> head() { return {weights_.head.norm, output()}; }
  template <class Lease>
  static Gradient<T> gradient(Lease& lease, T*& weights) {
    const tessera::Gradient<T> buffer = lease.gradient(weights);
    return {buffer.data, buffer.accumulate};
  }

  Model& model_;
  Config config_;
  Weights<T> weights_;
  tessera::Unit embedding_{}, head_{};
  std::vector<tessera::Unit> layers_;
  std::vector<FirstValue> first_;  // in the order of registration
};

}  // namespace llama
