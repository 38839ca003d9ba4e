#include "transformer.hpp"

#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "cuda_check.hpp"
#include "kernels.hpp"

namespace llama {
namespace {

std::vector<Matmuls::Wanted> products_of(const Config& c, std::size_t rows, bool accumulates) {
  std::vector<Matmuls::Wanted> all;
  const auto add = [&](std::size_t in, std::size_t out, Product forward) {
    for (const Product product : {forward, Product::input_gradient, Product::weight_gradient}) {
      all.push_back({product, {rows, in, out}});
    }
    if (accumulates) all.push_back({Product::weight_add, {rows, in, out}});
  };
  add(c.dim, c.qkv(), Product::forward);
  add(c.attention(), c.dim, Product::forward_add);
  add(c.dim, 2 * c.ff, Product::forward);
  add(c.ff, c.dim, Product::forward_add);
  add(c.dim, c.vocabulary, Product::forward);
  return all;
}

AttentionShape attention_of(const Config& c, std::size_t batch, std::size_t sequence,
                            std::size_t documents) {
  return {batch, sequence, c.heads, c.kv_heads, c.head_dim(), documents};
}

}  // namespace

template <class T>
Transformer<T>::Transformer(const Config& config, std::size_t batch, std::size_t sequence,
                            const TransformerOptions& options, cudaStream_t stream)
    : config_(config),
      shape_(attention_of(config, batch, sequence, options.documents)),
      stream_(stream),
      matmuls_(stream, std::is_same_v<T, float> ? MatmulElement::f32 : MatmulElement::bf16),
      attention_(stream, shape_, options.deterministic) {
  // One rank of a process after the other: times are undisturbed, and those that follow find what
  // the first has written.
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  matmuls_.tune(products_of(config, shape_.rows(), options.accumulates), options.tuning);
  // A plan that is chosen by time may be another one in the next run.
  if (options.tuning.measured && !options.deterministic) attention_.tune();
}

template <class T>
Transformer<T>::~Transformer() {
  cudaStreamSynchronize(stream_);  // what was enqueued uses the memory that is given back now
}

template <class T>
std::size_t Transformer<T>::bytes(const std::vector<Recompute>& recompute) const {
  return activation_bytes<T>(config_, shape_, attention_.workspace_bytes(), recompute, lent_);
}

template <class T>
std::vector<Recompute> Transformer<T>::choose(std::size_t budget) const {
  return choose_recompute<T>(config_, shape_, attention_.workspace_bytes(), lent_, budget);
}

template <class T>
void Transformer<T>::allocate(std::vector<Recompute> recompute) {
  arena_ = DeviceArena(bytes(recompute));
  a_ = Activations<T>::carve(arena_, config_, shape_, attention_.workspace_bytes(),
                             std::move(recompute), lent_);
  fill_rope_table(stream_, shape_.sequence, shape_.head_dim, config_.rope_theta, a_.cosines,
                  a_.sines);
  require(cudaMemsetAsync(a_.loss, 0, sizeof(double), stream_), "clearing the loss");
}

template <class T>
std::vector<std::string> Transformer<T>::choices() const {
  std::vector<std::string> lines = matmuls_.choices();
  lines.push_back("attention: " + attention_.choice());
  return lines;
}

template <class T>
void Transformer<T>::upload(const std::int32_t* tokens, const std::int32_t* targets,
                            const std::int32_t* documents) {
  if ((documents != nullptr) != (shape_.documents > 0)) {
    throw std::invalid_argument("a batch has documents where the options say so, and only there");
  }
  const std::size_t bytes = shape_.rows() * sizeof(std::int32_t);
  require(cudaMemcpyAsync(a_.tokens, tokens, bytes, cudaMemcpyHostToDevice, stream_), "uploading");
  require(cudaMemcpyAsync(a_.targets, targets, bytes, cudaMemcpyHostToDevice, stream_),
          "uploading");
  if (documents != nullptr) attention_.set_documents(documents);
}

template <class T>
void Transformer<T>::linear(Product product, std::size_t in, std::size_t out, const void* left,
                            const void* right, T* result, const T* added) {
  matmuls_.run(product, {shape_.rows(), in, out}, left, right, result, added);
}

template <class T>
void Transformer<T>::linear_gradient(std::size_t in, std::size_t out, const T* out_gradient,
                                     const T* x, const Gradient<T>& gradient) {
  linear(gradient.accumulate ? Product::weight_add : Product::weight_gradient, in, out,
         out_gradient, x, gradient.data);
}

template <class T>
void Transformer<T>::embed_forward(const T* table) {
  embedding_forward(stream_, shape_.rows(), config_.dim, a_.tokens, table, a_.stream[0]);
}

template <class T>
void Transformer<T>::activate(std::size_t layer, const LayerWeights<T>& w, bool all) {
  const Config& c = config_;
  const std::size_t rows = shape_.rows();
  const LayerActivations<T>& kept = a_.layers[layer];
  const T* const input = a_.stream[layer];
  T* const normed = kept.attention_normed != nullptr ? kept.attention_normed : a_.normed;
  rms_norm_forward(stream_, rows, c.dim, c.norm_epsilon, input, w.attention_norm, normed,
                   kept.attention_rstd);
  linear(Product::forward, c.dim, c.qkv(), normed, w.qkv, kept.qkv);
  rope(stream_, rows, shape_.sequence, c.heads + c.kv_heads, c.head_dim(), c.qkv(), a_.cosines,
       a_.sines, false, kept.qkv);
  attention_.forward(kept.qkv, kept.attended, kept.softmax, a_.attention_workspace);
  linear(Product::forward_add, c.attention(), c.dim, kept.attended, w.out, kept.middle, input);
  T* const ffn_normed = kept.ffn_normed != nullptr ? kept.ffn_normed : a_.normed;
  rms_norm_forward(stream_, rows, c.dim, c.norm_epsilon, kept.middle, w.ffn_norm, ffn_normed,
                   kept.ffn_rstd);
  linear(Product::forward, c.dim, 2 * c.ff, ffn_normed, w.gate_up, kept.gate_up);
  if (!all) return;
  T* const hidden = kept.swiglu != nullptr ? kept.swiglu : a_.hidden;
  swiglu_forward(stream_, rows, c.ff, kept.gate_up, hidden);
  linear(Product::forward_add, c.ff, c.dim, hidden, w.down, a_.stream[layer + 1], kept.middle);
}

template <class T>
void Transformer<T>::layer_forward(std::size_t layer, const LayerWeights<T>& weights) {
  activate(layer, weights, true);
}

template <class T>
void Transformer<T>::project(const HeadWeights<T>& w, float scale) {
  const Config& c = config_;
  rms_norm_forward(stream_, shape_.rows(), c.dim, c.norm_epsilon, a_.stream[c.layers], w.norm,
                   a_.head_normed, a_.head_rstd);
  linear(Product::forward, c.dim, c.vocabulary, a_.head_normed, w.output, a_.logits);
  cross_entropy(stream_, shape_.rows(), c.vocabulary, a_.targets, scale, a_.logits, a_.losses);
  add_losses(stream_, shape_.rows(), a_.losses, a_.loss);
}

template <class T>
void Transformer<T>::head_loss(const HeadWeights<T>& weights) {
  project(weights, 0.0f);
}

template <class T>
void Transformer<T>::head_forward_backward(const HeadWeights<T>& w, const HeadGradients<T>& g,
                                           float scale) {
  const Config& c = config_;
  project(w, scale);
  linear_gradient(c.dim, c.vocabulary, a_.logits, a_.head_normed, g.output);
  T* const normed_gradient = a_.head_normed;
  linear(Product::input_gradient, c.dim, c.vocabulary, a_.logits, w.output, normed_gradient);
  rms_norm_backward_only(stream_, shape_.rows(), c.dim, a_.stream[c.layers], w.norm, a_.head_rstd,
                         normed_gradient, a_.gradient, g.norm.data, g.norm.accumulate,
                         {a_.norm_sums});
}

template <class T>
void Transformer<T>::layer_backward(std::size_t layer, const LayerWeights<T>& w,
                                    const LayerGradients<T>& g) {
  const Config& c = config_;
  const std::size_t rows = shape_.rows();
  const LayerActivations<T>& kept = a_.layers[layer];
  const bool again = a_.recompute[layer] != Recompute::nothing;
  if (a_.recompute[layer] == Recompute::block) activate(layer, w, false);

  linear(Product::input_gradient, c.ff, c.dim, a_.gradient, w.down, a_.hidden);
  swiglu_backward(stream_, rows, c.ff, kept.gate_up, a_.hidden, again);
  linear_gradient(c.ff, c.dim, a_.gradient, again ? a_.hidden : kept.swiglu, g.down);
  linear(Product::input_gradient, c.dim, 2 * c.ff, kept.gate_up, w.gate_up, a_.normed);
  rms_norm_backward(stream_, rows, c.dim, kept.middle, w.ffn_norm, kept.ffn_rstd, a_.normed,
                    a_.gradient, again ? a_.normed : nullptr, g.ffn_norm.data,
                    g.ffn_norm.accumulate, {a_.norm_sums});
  linear_gradient(c.dim, 2 * c.ff, kept.gate_up, again ? a_.normed : kept.ffn_normed, g.gate_up);

  linear(Product::input_gradient, c.attention(), c.dim, a_.gradient, w.out, a_.attended_gradient);
  linear_gradient(c.attention(), c.dim, a_.gradient, kept.attended, g.out);
  attention_.backward(kept.qkv, kept.attended, kept.softmax, a_.attended_gradient, a_.qkv_gradient,
                      a_.attention_workspace);
  rope(stream_, rows, shape_.sequence, c.heads + c.kv_heads, c.head_dim(), c.qkv(), a_.cosines,
       a_.sines, true, a_.qkv_gradient);
  linear(Product::input_gradient, c.dim, c.qkv(), a_.qkv_gradient, w.qkv, a_.normed);
  rms_norm_backward(stream_, rows, c.dim, a_.stream[layer], w.attention_norm, kept.attention_rstd,
                    a_.normed, a_.gradient, again ? a_.normed : nullptr, g.attention_norm.data,
                    g.attention_norm.accumulate, {a_.norm_sums});
  linear_gradient(c.dim, c.qkv(), a_.qkv_gradient, again ? a_.normed : kept.attention_normed,
                  g.qkv);
}

template <class T>
void Transformer<T>::embed_backward(const Gradient<T>& table) {
  TokenSort::sort(stream_, shape_.rows(), a_.tokens, a_.sorted, a_.iota, a_.sort_workspace,
                  a_.sort_bytes);
  embedding_backward(stream_, shape_.rows(), config_.dim, config_.vocabulary, a_.sorted,
                     a_.gradient, table.data, table.accumulate);
}

template <class T>
void Transformer<T>::take_loss(double* pinned) {
  require(cudaMemcpyAsync(pinned, a_.loss, sizeof(double), cudaMemcpyDeviceToHost, stream_),
          "reading the loss");
  require(cudaMemsetAsync(a_.loss, 0, sizeof(double), stream_), "clearing the loss");
}

template class Transformer<float>;
template class Transformer<tessera::bf16>;

}  // namespace llama
