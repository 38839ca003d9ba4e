// The Llama of examples/llama once more, on the host and as plainly as it can be written, with
// gradients by hand: what the kernels and the training on GPUs are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "reference/attention.hpp"
#include "reference/cross_entropy.hpp"
#include "reference/documents.hpp"
#include "reference/embedding.hpp"
#include "reference/linear.hpp"
#include "reference/parameters.hpp"
#include "reference/rms_norm.hpp"
#include "reference/rope.hpp"
#include "reference/rounding.hpp"
#include "reference/shape.hpp"
#include "reference/swiglu.hpp"

namespace llama_reference {

/// Parameters, gradients and the activations of the latest forward. `Round` says what is lost where
/// a trainer stores a value: parameters; the residual stream; normed inputs; queries, keys and
/// values before and after they are turned; what attention, gate, up and SwiGLU give; logits; and
/// the gradients of all of these. A product that is added to the residual stream is not stored by
/// itself.
template <class Real, class Round = KeepPrecision>
class LlamaReference {
 public:
  using Values = std::vector<Real>;

  /// All parameters have their first values.
  LlamaReference(const Shape& shape, std::uint64_t seed)
      : shape_(shape), description_(parameters_of(shape)), layers_(shape.layers) {
    for (std::size_t id = 0; id < description_.size(); ++id) {
      parameters_.push_back(first_values<Real>(description_[id], seed, id));
      store<Round>(parameters_.back());
      gradients_.emplace_back(description_[id].size());
    }
  }

  const Shape& shape() const { return shape_; }
  const std::vector<Parameter>& description() const { return description_; }
  /// In the order of `description`. Forward takes them as they are: write only stored values.
  std::vector<Values>& parameters() { return parameters_; }
  /// Of the latest backward.
  const std::vector<Values>& gradients() const { return gradients_; }
  const Values& logits() const { return logits_; }

  /// The mean loss. Both spans are [batch, seq]; they must live until backward, as must
  /// `documents`, which are AttentionShape's, or empty. Positions are those in the sequence all the
  /// same: attention sees their differences alone.
  double forward(std::span<const std::uint32_t> tokens, std::span<const std::uint32_t> targets,
                 std::size_t batch, std::span<const std::size_t> documents = {}) {
    const Shape& s = shape_;
    tokens_ = tokens;
    targets_ = targets;
    rows_ = tokens.size();
    attention_ = {batch, rows_ / batch, s.heads, s.kv_heads, s.head_dim()};
    if (!documents.empty()) attention_.documents = documents.data();

    Values x(rows_ * s.dim);
    embedding_forward(rows_, s.dim, tokens.data(), parameters_[kEmbedding].data(), x.data());
    for (std::size_t i = 0; i < s.layers; ++i) x = forward_layer(i, std::move(x));

    last_.x = std::move(x);
    forward_norm(last_, final_norm(s));
    logits_ = product(last_.normed, {rows_, s.dim, s.vocab}, head(s));
    store<Round>(logits_);
    return cross_entropy_loss(rows_, s.vocab, logits_.data(), targets.data(),
                              static_cast<Real*>(nullptr));
  }

  /// All gradients of the latest forward.
  void backward() {
    const Shape& s = shape_;
    for (Values& gradient : gradients_) gradient.assign(gradient.size(), Real{});

    Values dlogits(logits_.size());
    cross_entropy_backward(rows_, s.vocab, logits_.data(), targets_.data(), dlogits.data());
    store<Round>(dlogits);
    const Values dnormed =
        product_backward(last_.normed, dlogits, {rows_, s.dim, s.vocab}, head(s));
    Values dx(rows_ * s.dim);  // there is no residual connection around the last norm
    backward_norm(last_, dnormed, final_norm(s), dx);
    for (std::size_t i = s.layers; i-- > 0;) backward_layer(i, dx);
    embedding_backward(rows_, s.dim, tokens_.data(), dx.data(), gradients_[kEmbedding].data());

    for (Values& gradient : gradients_) store<Round>(gradient);
  }

 private:
  struct Norm {
    Values x;
    Values inverse;
    Values normed;
  };

  struct Layer {
    Norm attention_norm;
    Values qkv;  ///< turned
    Values attended;
    Norm ffn_norm;
    Values gate_up;
    Values activated;
  };

  Values forward_layer(std::size_t index, Values x) {
    const Shape& s = shape_;
    const std::size_t first = first_of_layer(index);
    Layer& layer = layers_[index];

    layer.attention_norm.x = std::move(x);
    forward_norm(layer.attention_norm, first + kAttentionNorm);
    layer.qkv = product(layer.attention_norm.normed, {rows_, s.dim, s.packed()}, first + kQkv);
    store<Round>(layer.qkv);
    rope_forward(attention_, layer.qkv.data());
    store<Round>(layer.qkv);
    layer.attended.assign(rows_ * attention_.width(), Real{});
    attention_forward(attention_, layer.qkv.data(), layer.attended.data(),
                      static_cast<Real*>(nullptr));
    store<Round>(layer.attended);

    layer.ffn_norm.x = layer.attention_norm.x;
    add_linear({rows_, attention_.width(), s.dim}, layer.attended.data(),
               parameters_[first + kOut].data(), layer.ffn_norm.x.data());
    store<Round>(layer.ffn_norm.x);
    forward_norm(layer.ffn_norm, first + kFfnNorm);
    layer.gate_up = product(layer.ffn_norm.normed, {rows_, s.dim, 2 * s.ff}, first + kGateUp);
    store<Round>(layer.gate_up);
    layer.activated.assign(rows_ * s.ff, Real{});
    swiglu_forward(rows_, s.ff, layer.gate_up.data(), layer.activated.data());
    store<Round>(layer.activated);

    Values out = layer.ffn_norm.x;
    add_linear({rows_, s.ff, s.dim}, layer.activated.data(), parameters_[first + kDown].data(),
               out.data());
    store<Round>(out);
    return out;
  }

  /// dx: of the layer's output, then of its input.
  void backward_layer(std::size_t index, Values& dx) {
    const Shape& s = shape_;
    const std::size_t first = first_of_layer(index);
    const Layer& layer = layers_[index];

    const Values dactivated =
        product_backward(layer.activated, dx, {rows_, s.ff, s.dim}, first + kDown);
    Values dgate_up(layer.gate_up.size());
    swiglu_backward(rows_, s.ff, layer.gate_up.data(), dactivated.data(), dgate_up.data());
    store<Round>(dgate_up);
    backward_norm(layer.ffn_norm,
                  product_backward(layer.ffn_norm.normed, dgate_up, {rows_, s.dim, 2 * s.ff},
                                   first + kGateUp),
                  first + kFfnNorm, dx);

    const Values dattended =
        product_backward(layer.attended, dx, {rows_, attention_.width(), s.dim}, first + kOut);
    Values dqkv(layer.qkv.size());
    attention_backward(attention_, layer.qkv.data(), dattended.data(), dqkv.data());
    store<Round>(dqkv);
    rope_backward(attention_, dqkv.data());
    store<Round>(dqkv);
    backward_norm(layer.attention_norm,
                  product_backward(layer.attention_norm.normed, dqkv, {rows_, s.dim, s.packed()},
                                   first + kQkv),
                  first + kAttentionNorm, dx);
  }

  void forward_norm(Norm& norm, std::size_t parameter) const {
    norm.inverse.assign(rows_, Real{});
    norm.normed.assign(norm.x.size(), Real{});
    rms_norm_forward(rows_, shape_.dim, norm.x.data(), parameters_[parameter].data(),
                     norm.inverse.data(), norm.normed.data());
    store<Round>(norm.normed);
  }

  /// dx: of what passes by the norm, to which the norm's own is added.
  void backward_norm(const Norm& norm, const Values& dnormed, std::size_t parameter, Values& dx) {
    rms_norm_backward(rows_, shape_.dim, norm.x.data(), parameters_[parameter].data(),
                      norm.inverse.data(), dnormed.data(), dx.data(), dx.data(),
                      gradients_[parameter].data());
    store<Round>(dx);
  }

  /// Not stored yet.
  Values product(const Values& x, LinearShape s, std::size_t parameter) const {
    Values y(s.rows * s.out);
    add_linear(s, x.data(), parameters_[parameter].data(), y.data());
    return y;
  }

  /// Adds to the parameter's gradient and returns the input's.
  Values product_backward(const Values& x, const Values& dy, LinearShape s, std::size_t parameter) {
    add_linear_weight_gradient(s, dy.data(), x.data(), gradients_[parameter].data());
    Values dx(s.rows * s.in);
    add_linear_input_gradient(s, dy.data(), parameters_[parameter].data(), dx.data());
    store<Round>(dx);
    return dx;
  }

  Shape shape_;
  std::vector<Parameter> description_;
  std::vector<Values> parameters_;
  std::vector<Values> gradients_;

  std::span<const std::uint32_t> tokens_;
  std::span<const std::uint32_t> targets_;
  std::size_t rows_ = 0;
  AttentionShape attention_{};
  std::vector<Layer> layers_;
  Norm last_;
  Values logits_;
};

}  // namespace llama_reference
