// The training loop of one rank, for any policy.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>
#include <tessera/tessera.hpp>

#include "allocation_counter.hpp"
#include "batch.hpp"
#include "options.hpp"
#include "results.hpp"
#include "sampler.hpp"
#include "schedule.hpp"
#include "sharded_model.hpp"
#include "text.hpp"

namespace gpt {

inline tessera::Options shard_options(const Options& o) {
  tessera::Options options;
  options.schedule = o.schedule == ScheduleName::overlapped ? tessera::Schedule::overlapped
                                                            : tessera::Schedule::sequential;
  options.accumulation = o.accumulate > 1 && o.accumulation == AccumulationName::once
                             ? tessera::Accumulation::reduce_once
                             : tessera::Accumulation::reduce_each;
  options.prefetch_depth = static_cast<int>(o.prefetch_depth);
  options.bucket_bytes = o.bucket_bytes.value_or(0);
  options.clip_norm = static_cast<float>(o.clip);
  options.trace = !o.trace.empty();
  return options;
}

/// `Platform`: the backend, and what computes the model on it; see host_platform.hpp.
template <class Platform, class Strategy, class Precision, Element P>
class Trainer {
 public:
  using Backend = typename Platform::Backend;
  using Model = tessera::Shard<Strategy, tessera::OnDevice, Precision, Backend>;

  Trainer(const Options& options, const Text& text, typename Platform::Ranks ranks)
      : o_(options),
        text_(text),
        rank_(static_cast<std::size_t>(ranks.rank())),
        ranks_(ranks.channel()),
        mesh_(Platform::mesh(ranks, options.mesh)),
        model_part_(options.model_part(mesh_.place().tensor)),
        axis_(mesh_, model_part_, options.sequences(), options.sequence_parallel),
        sums_(mesh_.data()),
        allocated_before_(allocated_bytes()),
        shard_(mesh_,
               tessera::AdamW{.learning_rate = static_cast<float>(options.learning_rate),
                              .beta2 = 0.99f,
                              .weight_decay = static_cast<float>(options.weight_decay)},
               shard_options(options)),
        model_(shard_, units_, axis_, model_part_, options.sequences(), options.recompute,
               options.seed) {}

  /// Trains, validates, samples. What the ranks share of the results is set by rank 0.
  void run(Results& results, std::vector<std::vector<tessera::TraceEvent>>& traces) {
    train(results);
    const double validation = validate();
    // Before the digests, which bring states together in passing memory of their own.
    const std::uint64_t allocated = allocated_bytes() - allocated_before_;
    const std::uint64_t parameters = shard_.parameters_digest();
    const std::uint64_t moments = shard_.moments_digest();
    const std::string sample = this->sample();
    const tessera::Plan plan = shard_.plan();
    const auto planned = ranks_.exchange(static_cast<double>(plan.total_bytes()));
    const auto measured = ranks_.exchange(static_cast<double>(allocated));
    const auto state = ranks_.exchange(static_cast<double>(plan.state_bytes()));
    traces[rank_] = shard_.trace();
    if (rank_ != 0) return;
    for (std::size_t r = 0; r < planned.size(); ++r) {
      results.memory[r] = {static_cast<std::uint64_t>(planned[r]),
                           static_cast<std::uint64_t>(measured[r]),
                           static_cast<std::uint64_t>(state[r])};
    }
    results.strategy = Model::description().strategy.name;
    results.precision = Model::description().precision.name;
    results.val_loss = validation;
    results.params_digest = parameters;
    results.moments_digest = moments;
    results.sample = sample;
    results.most_used = peak_used_;
    if (o_.mesh.shard == o_.mesh.size()) results.formula = formula(plan);
    replicated(results);
  }

 private:
  void train(Results& results) {
    const CosineSchedule rate{o_.learning_rate, o_.warmup_steps(), o_.steps};
    const BatchShare share{o_.batch, o_.data_ranks(), o_.accumulate};
    Batch batch(share.sequences(), o_.model.context);
    const auto tokens = static_cast<double>(share.sequences() * o_.model.context);
    const float scale = static_cast<float>(1.0 / (tokens * static_cast<double>(o_.accumulate)));
    std::vector<double> step_ms, exposed_ms, communication_ms;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t step = 0; step < o_.steps; ++step) {
      for (std::size_t m = 0; m < o_.accumulate; ++m) {
        sample_batch(text_.training(), o_.seed, step, share.first(data_rank(), m), batch);
        if (o_.accumulation == AccumulationName::once && m + 1 < o_.accumulate) {
          auto unreduced = shard_.accumulate();
          model_.micro_step(batch, scale);
        } else {
          model_.micro_step(batch, scale);
        }
      }
      shard_.set_learning_rate(rate(step));
      const auto ticket = shard_.step();
      const tessera::StepReport& report = ticket.get();
      const double mean = sums_(model_.take_loss()).mean();
      require_number(mean, step, report);
      if (rank_ != 0) continue;
      if (step == 0) results.first_loss = mean;
      results.last_loss = mean;
      results.collectives += report.collectives;
      peak_used_ = report.peak_bytes;
      step_ms.push_back(report.step_ms);
      exposed_ms.push_back(report.exposed_ms);
      communication_ms.push_back(report.communication_ms);
      progress(step, mean, seconds_since(begin), report);
    }
    results.seconds = rank_ == 0 ? seconds_since(begin) : results.seconds;
    if (rank_ != 0) return;
    const double all = static_cast<double>(o_.batch * o_.model.context * o_.steps);
    results.tokens_per_s = results.seconds > 0 ? all / results.seconds : 0;
    results.step_ms_median = median(step_ms);
    results.exposed_ms = median(exposed_ms);
    results.communication_ms = median(communication_ms);
  }

  /// Every rank sees the same mean, so all stop together.
  void require_number(double loss, std::size_t step, const tessera::StepReport& report) const {
    if (std::isfinite(loss) && !report.skipped) return;
    throw InputError("the " + std::string(report.skipped ? "gradient" : "loss") + " of step " +
                     std::to_string(step) +
                     " is not a finite number: training cannot go on; try a lower --lr.");
  }

  double validate() {
    auto evaluating = shard_.evaluate();
    const Windows windows(text_.validation(), o_.model.context, o_.data_ranks(), o_.sequences());
    Batch batch(o_.sequences(), o_.model.context);
    for (std::size_t round = 0; round < windows.rounds(); ++round) {
      windows.fill(round, data_rank(), batch);
      model_.loss(batch);
    }
    const double mean = sums_(model_.take_loss()).mean();
    if (!std::isfinite(mean)) {
      throw InputError(
          "the validation loss is not a finite number: the last step diverged; try a lower --lr.");
    }
    return mean;
  }

  std::string sample() {
    if (o_.sample == 0) return {};
    auto evaluating = shard_.evaluate();
    Batch batch(1, o_.model.context);
    return sample_text(
        [&](const Token* tokens) {
          std::copy(tokens, tokens + o_.model.context, batch.tokens.begin());
          return model_.logits(batch);
        },
        "\n", o_.sample, o_.model.context, o_.model.vocabulary, 0.8, o_.seed);
  }

  void progress(std::size_t step, double loss, double seconds,
                const tessera::StepReport& report) const {
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    const std::size_t every = std::max<std::size_t>(1, o_.steps / (terminal ? 200 : 20));
    const bool last = step + 1 == o_.steps;
    if (step % every != 0 && !last) return;
    const double done = static_cast<double>(step + 1) / static_cast<double>(o_.steps);
    const auto tokens = static_cast<double>((step + 1) * o_.batch * o_.model.context);
    const std::string bar(static_cast<std::size_t>(done * 20), '#');
    std::printf("%s[%-20s] step %zu/%zu  loss %.4f  %.0f tokens/s  exposed %.2f of %.2f ms%s",
                terminal ? "\r" : "", bar.c_str(), step + 1, o_.steps, loss, tokens / seconds,
                report.exposed_ms, report.step_ms, terminal && !last ? "" : "\n");
    std::fflush(stdout);
  }

  /// On a mesh of the shard axis alone; other axes have collectives of their own.
  ///
  /// Full buffers of all units pass (ranks - 1) / ranks times for each gather and reduction:
  /// gathers per micro-step 2 (zero3) or 1 (zero3-keep), per step 1 (zero1, zero2) or, of fp32
  /// sums, 1 (replicate); one reduction per micro-step, or per step when gradients accumulate
  /// first.
  tessera::CollectiveCounts formula(const tessera::Plan& plan) const {
    tessera::CollectiveCounts due;
    if (o_.ranks == 1) return due;
    std::uint64_t parameters = 0, gradients = 0;
    for (const tessera::PlanUnit& unit : plan.units) {
      parameters += unit.parameters;
      gradients += unit.gradients;
    }
    const std::uint64_t micro = o_.accumulate;
    const bool once = o_.accumulation == AccumulationName::once;
    const bool replicate = o_.strategy == StrategyName::replicate;
    std::uint64_t gathers = 1;
    if (o_.strategy == StrategyName::zero3) gathers = 2 * micro;
    if (o_.strategy == StrategyName::zero3_keep) gathers = micro;
    const std::uint64_t gathered = replicate ? parameters / sizeof(P) * sizeof(float) : parameters;
    const std::uint64_t reductions = once ? 1 : micro;
    const std::uint64_t units = plan.units.size();
    const auto pass = [&](std::uint64_t bytes) { return bytes / o_.ranks * (o_.ranks - 1); };
    due[tessera::CollectiveKind::all_gather] = {gathers * units * o_.steps,
                                                gathers * pass(gathered) * o_.steps};
    due[tessera::CollectiveKind::reduce_scatter] = {reductions * units * o_.steps,
                                                    reductions * pass(gradients) * o_.steps};
    due[tessera::CollectiveKind::scalars] = {
        plan.collectives[tessera::CollectiveKind::scalars].count * o_.steps,
        plan.collectives[tessera::CollectiveKind::scalars].bytes * o_.steps};
    return due;
  }

  /// What Replicate would take for the same model: its plan, computed without running it.
  void replicated(Results& results) const {
    using Replicated =
        tessera::Shard<tessera::Replicate, tessera::OnDevice, Precision, tessera::Sim>;
    Units<P> units;
    Replicated model{
        tessera::Mesh<tessera::Sim>(tessera::SimCommunicator(static_cast<int>(o_.ranks))),
        tessera::AdamW{}, shard_options(o_)};
    units.add_to(model, o_.model);
    results.replicated_total = model.plan().total_bytes();
    results.replicated_state = model.plan().state_bytes();
  }

  static double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  /// Ranks that compute layers together see the same sequences.
  std::size_t data_rank() { return static_cast<std::size_t>(mesh_.data().rank()); }

  const Options& o_;
  const Text& text_;
  std::size_t rank_;
  typename Platform::Ranks ranks_;
  tessera::Mesh<Backend> mesh_;
  Config model_part_;
  typename Platform::Axis axis_;  // its memory is no part of the plan, nor of what is measured
  typename Platform::RankSums sums_;
  std::uint64_t allocated_before_;
  Units<P> units_;  // before the Shard, which writes to the tensors' pointers when it ends
  Model shard_;
  ShardedModel<Platform, Model, P> model_;
  std::uint64_t peak_used_ = 0;
};

}  // namespace gpt
