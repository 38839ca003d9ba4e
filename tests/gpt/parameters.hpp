// The tests' own memory for a model's parameters, and a micro-step on them, without a library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpt/transformer.hpp"

namespace model_tests {

using gpt::Config;
using gpt::Gradient;
using gpt::TensorInfo;
using gpt::Token;

/// All parameters of this rank one after the other, and the units that point into them.
template <class P>
class Parameters {
 public:
  explicit Parameters(const Config& config) {
    const auto embedding_info = gpt::embedding_info(config);
    const auto block_info = gpt::block_info(config);
    const auto head_info = gpt::head_info(config);
    const auto note = [&](const TensorInfo& info) { tensors.push_back(info); };
    gpt::zip(note, embedding_info);
    for (std::size_t i = 0; i < config.layers; ++i) gpt::zip(note, block_info);
    note(head_info.norm_w);
    note(head_info.norm_b);
    std::size_t size = 0;
    for (const TensorInfo& info : tensors) size += info.size();
    values.resize(size);
    gradients.resize(size);
    auto bind = [&](const TensorInfo& info, P*& weight, Gradient<P>& gradient) {
      weight = values.data() + used_;
      gradient = {gradients.data() + used_, false};
      used_ += info.size();
    };
    gpt::zip(bind, embedding_info, embedding, embedding_gradient);
    blocks.resize(config.layers);
    block_gradients.resize(config.layers);
    for (std::size_t i = 0; i < config.layers; ++i) {
      gpt::zip(bind, block_info, blocks[i], block_gradients[i]);
    }
    bind(head_info.norm_w, head.norm_w, head_gradient.norm_w);
    bind(head_info.norm_b, head.norm_b, head_gradient.norm_b);
    head.token = embedding.token;
    head_gradient.token = embedding_gradient.token;
    accumulate(false);
  }

  /// Whether gradients are added to those of an earlier micro-step.
  void accumulate(bool on) {
    const auto set = [&](auto& unit) {
      gpt::zip([&](Gradient<P>& gradient) { gradient.accumulate = on; }, unit);
    };
    set(embedding_gradient);
    for (auto& block : block_gradients) set(block);
    set(head_gradient);
    embedding_gradient.token.accumulate = true;  // the head comes first
  }

  std::vector<TensorInfo> tensors;  // in the order of their values
  std::vector<P> values;
  std::vector<P> gradients;
  gpt::EmbeddingWeights<P> embedding;
  gpt::EmbeddingGradients<P> embedding_gradient;
  std::vector<gpt::BlockWeights<P>> blocks;
  std::vector<gpt::BlockGradients<P>> block_gradients;
  gpt::HeadWeights<P> head;
  gpt::HeadGradients<P> head_gradient;

 private:
  std::size_t used_ = 0;
};

struct Sample {
  Sample(const Config& c, std::size_t batch) {
    std::uint32_t state = 7;
    for (std::size_t i = 0; i < batch * c.context; ++i) {
      state = state * 1664525u + 1013904223u;
      tokens.push_back(static_cast<Token>((state >> 8) % c.vocabulary));
      targets.push_back(static_cast<Token>((state >> 20) % c.vocabulary));
    }
    targets[2] = gpt::kIgnored;
  }

  std::vector<Token> tokens, targets;
};

/// The gradients of the sum of the sample's losses.
template <class P, class Axis>
gpt::LossSum micro_step(const Config& c, gpt::Transformer<P, Axis>& model, Parameters<P>& p,
                        const Sample& sample) {
  model.embed_forward(p.embedding, sample.tokens.data());
  for (std::size_t i = 0; i < c.layers; ++i) model.block_forward(i, p.blocks[i]);
  const auto loss =
      model.head_forward_backward(p.head, p.head_gradient, sample.targets.data(), 1.0f);
  for (std::size_t i = c.layers; i-- > 0;) {
    model.block_backward(i, p.blocks[i], p.block_gradients[i]);
  }
  model.embed_backward(p.embedding_gradient, sample.tokens.data());
  return loss;
}

}  // namespace model_tests
