// A sharded run, for a policy: ranks are threads, which take the GPUs in turn, or processes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>
#include <tessera/cuda.hpp>
#include <tessera/tessera.hpp>

#include "batches.hpp"
#include "options.hpp"
#include "ranks.hpp"
#include "results.hpp"
#include "sharded_llama.hpp"

#include "run_steps.hpp"
#include "transformer.hpp"

namespace llama {

template <class T, class Strategy, class Precision>
class ShardedRun {
 public:
  using Model = tessera::Shard<Strategy, tessera::OnDevice, Precision, Devices>;

  ShardedRun(const Options& options, const TokenFile* file, Ranks ranks)
      : o_(options),
        ranks_(ranks),
        sums_(ranks.channel()),
        batches_(options, file, static_cast<std::size_t>(ranks.rank())),
        losses_(2),
        transformer_(options.model, options.batch, options.sequence,
                     transformer_options(options, batches_.documents()), cudaStreamPerThread),
        shard_(tessera::Mesh<Devices>(ranks), adamw(options), shard_options(options)),
        model_(shard_, options.model) {
    shard_.materialize(model_.first_values(options.seed));
    // Ranks of one device divide what is left there: all have taken their state, and ask before
    // any takes more.
    (void)sums_.exchange(0);
    const std::size_t free = free_bytes();
    (void)sums_.exchange(0);
    if (options.accumulate == 1 && !options.no_collectives) {
      transformer_.borrow(model_.lent_memory());
    }
    allocate_activations(transformer_, options, free);
  }

  void run(Results& results, std::vector<tessera::TraceEvent>& trace) {
    const bool first = shard_.rank() == 0;
    Results own;
    run_steps(
        o_, own, first, [this](std::size_t step) { return enqueue(step); },
        [this](std::size_t step) { return losses_.get()[slot(step)]; },
        [this](double sum) { return mean(sum); });
    trace = shard_.trace();
    if (o_.digest) {
      own.parameters_digest = shard_.parameters_digest();
      own.moments_digest = shard_.moments_digest();
    }
    std::size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total), "asking for free memory");
    // Of the fullest device; and nobody gives memory back before all have asked.
    for (const double used : sums_.exchange(static_cast<double>(total - free))) {
      own.device_bytes = std::max(own.device_bytes, static_cast<std::uint64_t>(used));
    }
    if (!first) return;
    own.strategy = Model::description().strategy.name;
    own.precision = Model::description().precision.name;
    own.planned_bytes = shard_.plan().total_bytes();
    own.state_bytes = shard_.plan().state_bytes();
    own.activation_bytes = transformer_.bytes(transformer_.recompute());
    count_layers(own, transformer_.recompute());
    own.choices = transformer_.choices();
    own.transport = shard_.transport();
    results = std::move(own);
  }

 private:
  using Ticket = tessera::StepTicket<Devices>;

  static tessera::AdamW adamw(const Options& o) {
    return {.learning_rate = static_cast<float>(o.learning_rate),
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .epsilon = 1e-8f,
            .weight_decay = static_cast<float>(o.weight_decay)};
  }
  static tessera::Options shard_options(const Options& o) {
    tessera::Options options;
    options.clip_norm = static_cast<float>(o.clip);
    options.prefetch_depth = static_cast<int>(o.prefetch_depth);
    options.reductions_in_flight = static_cast<int>(o.reductions_in_flight);
    options.bucket_bytes = std::uint64_t{o.bucket_mib} << 20;
    if (o.sequential) options.schedule = tessera::Schedule::sequential;
    options.collectives_at_one_rank = o.force_collectives;
    options.trace = !o.trace.empty();
    return options;
  }

  Ticket enqueue(std::size_t step) {
    const bool silent = o_.no_collectives && step >= o_.untimed;
    if (silent) ranks_.fall_silent();
    // What is in the buffers stays plausible, on which the products' speed depends.
    shard_.set_learning_rate(silent ? 0.0f : learning_rate(o_, step));
    std::vector<Batches::Batch> batches;
    for (std::size_t m = 0; m < o_.accumulate; ++m) batches.push_back(batches_.fill(step, m));
    // A graph from the third step on, when orders are expected and kernels loaded.
    if (!o_.graph || step < 2) return work(step, batches);
    if (!graph_) {
      graph_.emplace(shard_, [&] { (void)work(step, batches); });
    }
    return graph_->replay();
  }

  Ticket work(std::size_t step, const std::vector<Batches::Batch>& batches) {
    const float scale = static_cast<float>(1.0 / static_cast<double>(o_.rows() * o_.accumulate));
    for (const Batches::Batch& batch : batches) {
      transformer_.upload(batch.tokens, batch.targets, batch.documents);
      model_.micro_step(transformer_, scale);
    }
    transformer_.take_loss(losses_.get() + slot(step));
    return shard_.step();
  }

  std::size_t slot(std::size_t step) const { return o_.graph ? 0 : step % 2; }

  double mean(double sum) {
    double all = 0;
    for (const double each : sums_.exchange(sum)) all += each;
    return all / static_cast<double>(o_.tokens_per_step());
  }

  const Options& o_;
  Ranks ranks_;
  Ranks sums_;
  Batches batches_;
  Pinned<double> losses_;
  Transformer<T> transformer_;
  Model shard_;
  ShardedLlama<Model, T> model_;
  std::optional<tessera::StepGraph<Model>> graph_;
};

template <class T, class Strategy, class Precision>
void train_sharded(const Options& options, const TokenFile* file, Ranks* processes,
                   Results& results, Traces& traces) {
  if (processes != nullptr) {
    traces.resize(1);
    ShardedRun<T, Strategy, Precision> run(options, file, *processes);
    run.run(results, traces[0]);
    return;
  }
  traces.resize(options.ranks);
  tessera::run_cuda_ranks(
      static_cast<int>(options.ranks),
      [&](tessera::CudaInProcess ranks) {
        ShardedRun<T, Strategy, Precision> run(options, file, Ranks(ranks));
        run.run(results, traces[static_cast<std::size_t>(ranks.rank())]);
      },
      std::chrono::minutes(10));
}

/// For each strategy of --strategy.
template <class T, class Precision>
void train_sharded(const Options& options, const TokenFile* file, Ranks* processes,
                   Results& results, Traces& traces) {
  using namespace tessera;
  switch (options.strategy) {
    case StrategyName::replicate:
      return train_sharded<T, Replicate, Precision>(options, file, processes, results, traces);
    case StrategyName::zero2:
      return train_sharded<T, Zero2, Precision>(options, file, processes, results, traces);
    case StrategyName::zero3:
      return train_sharded<T, Zero3<>, Precision>(options, file, processes, results, traces);
    case StrategyName::zero3_keep:
      return train_sharded<T, Zero3<Reshard::after_backward>, Precision>(options, file, processes,
                                                                         results, traces);
  }
}

}  // namespace llama
