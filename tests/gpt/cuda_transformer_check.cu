// Runs the GPT of examples/gpt on the host and on a GPU, with the same weights and tokens, and
// compares losses and gradients. A program of its own, for a machine with a GPU:
//   nvcc -std=c++20 -O2 -arch=native -I include tests/gpt/cuda_transformer_check.cu -lcublas
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

// The host's products, so that no BLAS library is needed; sums in double.
#define GPT_OWN_SGEMM
enum BlasOrder { CblasRowMajor };
enum BlasTranspose { CblasNoTrans, CblasTrans };
inline void cblas_sgemm(BlasOrder, BlasTranspose a_op, BlasTranspose b_op, int m, int n, int k,
                        float alpha, const float* a, int a_stride, const float* b, int b_stride,
                        float beta, float* c, int c_stride) {
  const auto at = [](const float* x, BlasTranspose op, int stride, int row, int column) {
    return static_cast<double>(op == CblasTrans ? x[column * stride + row]
                                                : x[row * stride + column]);
  };
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int l = 0; l < k; ++l) sum += at(a, a_op, a_stride, i, l) * at(b, b_op, b_stride, l, j);
      float& to = c[i * c_stride + j];
      const double before = beta == 0.0f ? 0.0 : static_cast<double>(beta) * to;
      to = static_cast<float>(alpha * sum + before);
    }
  }
}

#include "../../examples/gpt/random.hpp"
#include "../../examples/gpt/transformer.hpp"
#include "../../examples/gpt_cuda/cuda_transformer.cuh"
#include "tessera/exact/bf16.hpp"

namespace {

using gpt::Config;
using gpt::Gradient;
using gpt::TensorInfo;
using gpt::to_float;
using gpt::Token;

constexpr float kTolerance = 2e-4f;  // of the largest magnitude in a tensor

struct Case {
  Config config;
  std::size_t batch;
};

/// From -1 to below 1.
float noise(std::uint64_t index) {
  const std::uint64_t bits = gpt::random_bits(7, gpt::Stream::batches, index);
  return static_cast<float>(2.0 * gpt::unit_interval(bits) - 1.0);
}

std::vector<Token> tokens_of(const Case& c, std::uint64_t seed, std::size_t ignored) {
  std::vector<Token> tokens(c.batch * c.config.context);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint64_t bits = gpt::random_bits(seed, gpt::Stream::text, i);
    // Few different ones, so that they repeat; some targets do not count.
    tokens[i] = static_cast<Token>(gpt::below(9, bits));
    if (ignored != 0 && i % ignored == 0) tokens[i] = gpt::kIgnored;
  }
  return tokens;
}

/// The tensors of the model one after the other in one buffer, each at a multiple of 64 elements as
/// a Shard has them, and the units that point into it.
template <class T, class Bind>
std::size_t lay_out(const Config& config, const Bind& bind, gpt::EmbeddingTensors<T>& embedding,
                    std::vector<gpt::BlockTensors<T>>& blocks, gpt::HeadTensors<T>& head) {
  std::size_t used = 0;
  const auto place = [&](const TensorInfo& info, T& field) {
    field = bind(info, used);
    used += (info.size() + 63) / 64 * 64;
  };
  const auto e = gpt::embedding_info(config);
  gpt::zip(place, e, embedding);
  const auto b = gpt::block_info(config);
  blocks.resize(config.layers);
  for (auto& block : blocks) gpt::zip(place, b, block);
  const auto h = gpt::head_info(config);
  place(h.norm_w, head.norm_w);
  place(h.norm_b, head.norm_b);
  head.token = embedding.token;
  return used;
}

/// Weights and gradients at one address range, of the host or of the device.
template <class P>
struct Parameters {
  gpt::EmbeddingWeights<P> embedding;
  std::vector<gpt::BlockWeights<P>> blocks;
  gpt::HeadWeights<P> head;
  gpt::EmbeddingGradients<P> embedding_gradient;
  std::vector<gpt::BlockGradients<P>> block_gradients;
  gpt::HeadGradients<P> head_gradient;

  Parameters(const Config& config, P* weights, P* gradients, bool accumulate) {
    const auto weight = [&](const TensorInfo&, std::size_t at) { return weights + at; };
    const auto gradient = [&](const TensorInfo&, std::size_t at) {
      return Gradient<P>{gradients + at, accumulate};
    };
    lay_out<P*>(config, weight, embedding, blocks, head);
    lay_out<Gradient<P>>(config, gradient, embedding_gradient, block_gradients, head_gradient);
    embedding_gradient.token.accumulate = true;  // the head comes first
  }
};

struct Tensor {
  TensorInfo info;
  std::size_t at;
};

/// Every tensor in its place; `elements`: what they take together.
std::vector<Tensor> tensors_of(const Config& config, std::size_t& elements) {
  gpt::EmbeddingTensors<Tensor> embedding;
  std::vector<gpt::BlockTensors<Tensor>> blocks;
  gpt::HeadTensors<Tensor> head;
  std::vector<Tensor> all;
  const auto note = [&](const TensorInfo& info, std::size_t at) {
    return all.emplace_back(Tensor{info, at});
  };
  elements = lay_out<Tensor>(config, note, embedding, blocks, head);
  return all;
}

void assign(float value, float& to) { to = value; }
void assign(float value, tessera::bf16& to) { to = tessera::to_bf16(value); }

/// What a run leaves behind.
template <class P>
struct Outcome {
  gpt::LossSum loss;
  std::vector<P> gradients;
  std::vector<float> logits;
};

/// Two micro-steps' worth of everything that a Transformer does: training, validation, sampling.
template <class P, class Model>
Outcome<P> drive(Model& model, const Case& c, Parameters<P>& p) {
  const std::vector<Token> tokens = tokens_of(c, 1, 0);
  const std::vector<Token> targets = tokens_of(c, 2, 5);
  const auto forward = [&] {
    model.embed_forward(p.embedding, tokens.data());
    for (std::size_t l = 0; l < c.config.layers; ++l) model.block_forward(l, p.blocks[l]);
  };
  forward();
  model.head_forward_backward(p.head, p.head_gradient, targets.data(), 0.125f);
  for (std::size_t l = c.config.layers; l-- > 0;) {
    model.block_backward(l, p.blocks[l], p.block_gradients[l]);
  }
  model.embed_backward(p.embedding_gradient, tokens.data());
  forward();
  model.head_loss(p.head, targets.data());
  Outcome<P> outcome{model.take_loss(), {}, {}};
  model.use_batch(1);
  forward();
  const float* logits = model.head_logits(p.head);
  outcome.logits.assign(logits, logits + c.config.context * c.config.vocabulary);
  return outcome;
}

template <class P>
Outcome<P> on_host(const Case& c, bool recompute, bool accumulate, std::vector<P> weights,
                   std::vector<P> gradients) {
  gpt::Transformer<P> model(c.config, c.batch, recompute);
  Parameters<P> p(c.config, weights.data(), gradients.data(), accumulate);
  Outcome<P> outcome = drive<P>(model, c, p);
  outcome.gradients = std::move(gradients);
  return outcome;
}

template <class P>
Outcome<P> on_device(const Case& c, bool recompute, bool accumulate, const std::vector<P>& weights,
                     const std::vector<P>& gradients) {
  using gpt::cuda::require;
  const cudaStream_t stream = cudaStreamPerThread;
  const std::size_t bytes = weights.size() * sizeof(P);
  gpt::cuda::DeviceArena arena(2 * bytes + 512, stream);
  P* const w = arena.take<P>(weights.size());
  P* const g = arena.take<P>(weights.size());
  require(cudaMemcpyAsync(w, weights.data(), bytes, cudaMemcpyHostToDevice, stream), "weights");
  require(cudaMemcpyAsync(g, gradients.data(), bytes, cudaMemcpyHostToDevice, stream), "gradients");
  gpt::CudaTransformer<P> model(c.config, c.batch, recompute, stream);
  Parameters<P> p(c.config, w, g, accumulate);
  Outcome<P> outcome = drive<P>(model, c, p);
  outcome.gradients.resize(gradients.size());
  require(cudaMemcpyAsync(outcome.gradients.data(), g, bytes, cudaMemcpyDeviceToHost, stream),
          "gradients");
  require(cudaStreamSynchronize(stream), "the model");
  return outcome;
}

bool all_fine = true;

void fail(const char* what, double host, double device) {
  std::printf("  FAILED %s: %.9g on the host, %.9g on the device\n", what, host, device);
  all_fine = false;
}

/// `a` and `b` within a part of the largest magnitude of `a`.
template <class T>
double compare(const char* what, const T* a, const T* b, std::size_t n, float tolerance) {
  double largest = 0.0, off = 0.0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = to_float(a[i]), y = to_float(b[i]);
    largest = std::max(largest, std::fabs(x));
    // A NaN compares with nothing, and must be found too.
    const double apart = std::isfinite(y) ? std::fabs(x - y) : HUGE_VAL;
    if (apart > off) off = apart, worst = i;
  }
  const double part = off / std::max(largest, 1e-20);
  if (part > tolerance) fail(what, to_float(a[worst]), to_float(b[worst]));
  return part;
}

template <class P>
void check(const char* precision, const Case& c, bool recompute, bool accumulate) {
  const Config& m = c.config;
  std::size_t elements = 0;
  const std::vector<Tensor> tensors = tensors_of(m, elements);
  // What is not accumulated into is garbage, and must be overwritten without being read.
  std::vector<P> weights(elements), gradients(elements);
  for (P& gradient : gradients) assign(std::numeric_limits<float>::quiet_NaN(), gradient);
  for (const Tensor& t : tensors) {
    for (std::size_t i = 0; i < t.info.size(); ++i) {
      const std::size_t at = t.at + i;
      const float spread = t.info.columns == 1 ? 0.3f : 0.15f;
      assign(t.info.fill + spread * noise(at), weights[at]);
      if (accumulate) assign(0.5f * noise(elements + at), gradients[at]);
    }
  }

  const Outcome<P> host = on_host(c, recompute, accumulate, weights, gradients);
  const Outcome<P> device = on_device(c, recompute, accumulate, weights, gradients);
  const Outcome<P> again = on_device(c, recompute, accumulate, weights, gradients);
  // Gradients rounded to 8 bits may differ by a unit, and that twice for the tied table.
  const float tolerance = sizeof(P) == 2 ? 0x1p-6f : kTolerance;
  double worst = compare("the logits", host.logits.data(), device.logits.data(), host.logits.size(),
                         kTolerance);
  const double loss = host.loss.mean(), found = device.loss.mean();
  if (host.loss.count != device.loss.count) fail("targets", host.loss.count, device.loss.count);
  if (!(std::fabs(loss - found) <= kTolerance * loss)) fail("the loss", loss, found);
  for (const Tensor& t : tensors) {
    worst = std::max(worst, compare(t.info.name, host.gradients.data() + t.at,
                                    device.gradients.data() + t.at, t.info.size(), tolerance));
  }
  const auto same = [](const auto* a, const auto* b, std::size_t n) {
    if (std::memcmp(a, b, n * sizeof(*a)) == 0) return;
    std::puts("  FAILED: a second run has other bits");
    all_fine = false;
  };
  same(device.gradients.data(), again.gradients.data(), elements);
  same(device.logits.data(), again.logits.data(), device.logits.size());
  same(&device.loss.sum, &again.loss.sum, 1);
  std::printf("%s batch %zu context %zu heads %zu width %zu%s%s: loss %.6f, off by %.2g\n",
              precision, c.batch, m.context, m.heads, m.width, recompute ? ", recompute" : "",
              accumulate ? ", accumulate" : "", loss, worst);
}

int run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU: nothing was compared\n");
    return std::getenv("TESSERA_GPU_REQUIRED") != nullptr ? 1 : 77;
  }
  const Case cases[] = {
      {{.vocabulary = 53, .context = 7, .layers = 2, .heads = 3, .width = 48}, 3},
      {{.vocabulary = 256, .context = 33, .layers = 2, .heads = 2, .width = 34}, 1},
      {{.vocabulary = 256, .context = 64, .layers = 2, .heads = 4, .width = 128}, 5},
  };
  for (const Case& c : cases) {
    for (const bool recompute : {false, true}) {
      for (const bool accumulate : {false, true}) {
        check<float>("fp32", c, recompute, accumulate);
        check<tessera::bf16>("bf16", c, recompute, accumulate);
      }
    }
  }
  std::puts(all_fine ? "fine" : "FAILED");
  return all_fine ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
