// A run without tessera, as far as it goes: one GPU, bf16 with fp32 masters.
#include <cmath>
#include <utility>
#include <vector>
#include <tessera/engine/report.hpp>

#include "batches.hpp"
#include "plain_state.hpp"
#include "run_steps.hpp"
#include "train.hpp"
#include "transformer.hpp"

namespace llama {
namespace {

using tessera::bf16;

class PlainRun {
 public:
  PlainRun(const Options& options, const TokenFile* file)
      : o_(options),
        batches_(options, file, 0),
        losses_(2),
        transformer_(options.model, options.batch, options.sequence,
                     transformer_options(options, batches_.documents()), kStream),
        state_(kStream) {
    const Config& c = o_.model;
    const auto matrix = [&](std::size_t out, std::size_t in, float deviation) {
      add(out * in, true, {0.0f, deviation, o_.seed, 0});
    };
    const auto norm = [&] { add(c.dim, false, {1.0f, 0.0f, o_.seed, 0}); };
    matrix(c.vocabulary, c.dim, 0.02f);
    for (std::size_t l = 0; l < c.layers; ++l) {
      norm();
      matrix(c.qkv(), c.dim, 0.02f);
      matrix(c.dim, c.attention(), 0.02f);
      norm();
      matrix(2 * c.ff, c.dim, 0.02f);
      matrix(c.dim, c.ff, 0.02f);
    }
    norm();
    if (!c.tied) matrix(c.vocabulary, c.dim, 1.0f / std::sqrt(static_cast<float>(c.dim)));
    state_.allocate();
    allocate_activations(transformer_, o_, free_bytes());
    for (cudaEvent_t& event : ends_) require(cudaEventCreate(&event), "an event");
  }
  ~PlainRun() {
    for (cudaEvent_t event : ends_) cudaEventDestroy(event);
  }
  PlainRun(const PlainRun&) = delete;
  PlainRun& operator=(const PlainRun&) = delete;

  void run(Results& results) {
    require(cudaEventRecord(end(kEnds - 1), kStream), "an event");
    run_steps(
        o_, results, true, [this](std::size_t step) { return enqueue(step); },
        [this](std::size_t step) { return losses_.get()[step % 2]; },
        [this](double sum) { return sum / static_cast<double>(o_.tokens_per_step()); });
    std::size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total), "asking for free memory");
    results.device_bytes = total - free;
    results.strategy = "plain buffers";
    results.precision = "bf16";
    results.planned_bytes = results.state_bytes = state_.bytes();
    results.activation_bytes = transformer_.bytes(transformer_.recompute());
    count_layers(results, transformer_.recompute());
    results.choices = transformer_.choices();
  }

 private:
  static inline const cudaStream_t kStream = cudaStreamPerThread;
  static constexpr std::size_t kEnds = 4;

  struct Ticket {
    PlainRun* run;
    std::size_t step;
    tessera::StepReport get() const {
      tessera::StepReport report;
      require(cudaEventSynchronize(run->end(step)), "waiting for a step");
      float ms = 0;
      require(cudaEventElapsedTime(&ms, run->end(step + kEnds - 1), run->end(step)), "a time");
      report.step_ms = static_cast<double>(ms);
      return report;
    }
  };

  /// Recorded at the end of a step; that of step -1 at the beginning.
  cudaEvent_t end(std::size_t step) const { return ends_[step % kEnds]; }

  void add(std::size_t size, bool decays, FirstValue first) {
    first.tensor = static_cast<std::uint32_t>(count_++);
    (void)state_.add(size, decays, first);
  }

  Ticket enqueue(std::size_t step) {
    const float scale = static_cast<float>(1.0 / static_cast<double>(o_.rows() * o_.accumulate));
    for (std::size_t m = 0; m < o_.accumulate; ++m) {
      const Batches::Batch batch = batches_.fill(step, m);
      transformer_.upload(batch.tokens, batch.targets, batch.documents);
      micro_step(scale, m > 0);
    }
    transformer_.take_loss(losses_.get() + step % 2);
    state_.step({learning_rate(o_, step), 0.9f, 0.95f, 1e-8f, static_cast<float>(o_.weight_decay),
                 static_cast<float>(o_.clip)});
    require(cudaEventRecord(end(step), kStream), "an event");
    return {this, step};
  }

  void micro_step(float scale, bool accumulate) {
    const Config& c = o_.model;
    const std::size_t head_norm = 1 + 6 * c.layers;
    const std::size_t output = c.tied ? 0 : head_norm + 1;
    const auto gradient = [&](std::size_t tensor, bool added) {
      return Gradient<bf16>{state_.gradient(tensor), added};
    };
    const auto layer = [&](std::size_t l) {
      const std::size_t at = 1 + 6 * l;
      return LayerWeights<bf16>{state_.weight(at),     state_.weight(at + 1),
                                state_.weight(at + 2), state_.weight(at + 3),
                                state_.weight(at + 4), state_.weight(at + 5)};
    };
    transformer_.embed_forward(state_.weight(0));
    for (std::size_t l = 0; l < c.layers; ++l) transformer_.layer_forward(l, layer(l));
    transformer_.head_forward_backward(
        {state_.weight(head_norm), state_.weight(output)},
        {gradient(head_norm, accumulate), gradient(output, accumulate)}, scale);
    for (std::size_t l = c.layers; l-- > 0;) {
      const std::size_t at = 1 + 6 * l;
      transformer_.layer_backward(l, layer(l),
                                  {gradient(at, accumulate), gradient(at + 1, accumulate),
                                   gradient(at + 2, accumulate), gradient(at + 3, accumulate),
                                   gradient(at + 4, accumulate), gradient(at + 5, accumulate)});
    }
    transformer_.embed_backward(gradient(0, accumulate || c.tied));
  }

  const Options& o_;
  Batches batches_;
  Pinned<double> losses_;
  Transformer<bf16> transformer_;
  PlainState state_;
  std::size_t count_ = 0;
  cudaEvent_t ends_[kEnds] = {};
};

}  // namespace

void train_plain(const Options& options, const TokenFile* file, Results& results) {
  PlainRun(options, file).run(results);
}

}  // namespace llama
