// The training loop of one rank, whatever holds its state, and what it sets up ahead.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <tessera/engine/report.hpp>

#include "batches.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "results.hpp"
#include "transformer.hpp"

namespace llama {

/// The learning rate of a step, from 0.
inline float learning_rate(const Options& o, std::size_t step) {
  const double peak = o.learning_rate;
  if (step < o.warmup) {
    return static_cast<float>(peak * static_cast<double>(step + 1) / static_cast<double>(o.warmup));
  }
  if (o.rate == Rate::constant || o.steps <= o.warmup) return static_cast<float>(peak);
  const double done =
      static_cast<double>(step - o.warmup) / static_cast<double>(o.steps - o.warmup);
  return static_cast<float>(peak * (0.1 + 0.45 * (1.0 + std::cos(3.14159265358979 * done))));
}

inline TransformerOptions transformer_options(const Options& o, std::size_t documents) {
  TransformerOptions options;
  options.deterministic = o.deterministic;
  options.accumulates = o.accumulate > 1;
  options.documents = documents;
  options.tuning.measured = o.tune;
  options.tuning.file = o.algorithms;
  return options;
}

inline std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "asking for free memory");
  return free;
}

/// Chooses what layers compute again, and allocates. `free`: bytes of the device that its ranks
/// share, when everything else had its memory.
template <class T>
void allocate_activations(Transformer<T>& transformer, const Options& o, std::size_t free) {
  if (o.recompute) {
    transformer.allocate(std::vector<Recompute>(o.model.layers, *o.recompute));
    return;
  }
  int devices = 0;
  require(cudaGetDeviceCount(&devices), "counting devices");
  const auto on_each = static_cast<std::size_t>(devices);
  const std::size_t sharing = o.processes ? 1 : (o.ranks + on_each - 1) / on_each;
  constexpr std::size_t kMargin = std::size_t{512} << 20;  // for what libraries load late
  std::size_t budget = free > kMargin ? (free - kMargin) / sharing : 0;
  if (o.activation_gib) budget = static_cast<std::size_t>(*o.activation_gib * 0x1p30);
  std::vector<Recompute> choice = transformer.choose(budget);
  if (choice.empty()) {
    char message[200];
    std::snprintf(message, sizeof message,
                  "activations take %.2f GiB at the least, and %s %.2f: use a smaller --batch or "
                  "--seq.",
                  static_cast<double>(
                      transformer.bytes(std::vector<Recompute>(o.model.layers, Recompute::block))) /
                      0x1p30,
                  o.activation_gib ? "--activation-gib is" : "a rank has",
                  static_cast<double>(budget) / 0x1p30);
    throw InputError(message);
  }
  transformer.allocate(std::move(choice));
}

class Progress {
 public:
  Progress(const Options& options, bool shown) : o_(options), shown_(shown && !options.quiet) {}

  void show(std::size_t step, double loss, const tessera::StepReport& report) const {
    if (!shown_ || (step % std::max<std::size_t>(1, o_.steps / 20) != 0 && step + 1 != o_.steps)) {
      return;
    }
    const double rate = static_cast<double>(o_.tokens_per_step()) * 1e3 / report.step_ms;
    std::printf(
        "step %zu/%zu  loss %.4f  norm %.3f  %.0f tokens/s  %.1f %% MFU  exposed %.2f of "
        "%.2f ms\n",
        step + 1, o_.steps, loss, report.norm, rate, mfu_percent(o_, rate), report.exposed_ms,
        report.step_ms);
    std::fflush(stdout);
  }

 private:
  const Options& o_;
  bool shown_;
};

/// Runs the steps; `first`: this rank shows progress. `enqueue(step)` enqueues one, its losses' sum
/// going to `loss_of(step)`, and returns a ticket; `mean(sum)` is the loss over all ranks. The host
/// stays one step ahead of the device.
template <class Enqueue, class LossOf, class Mean>
void run_steps(const Options& o, Results& results, bool first, Enqueue&& enqueue, LossOf&& loss_of,
               Mean&& mean) {
  const Progress progress(o, first);
  const auto finish = [&](std::size_t step, const tessera::StepReport& report) {
    const double loss = mean(loss_of(step));
    results.losses.push_back(loss);
    results.last_norm = report.norm;
    if (step >= o.untimed) {
      results.step_ms.push_back(report.step_ms);
      results.exposed_ms.push_back(report.exposed_ms);
      results.communication_ms.push_back(report.communication_ms);
      results.enqueue_us.push_back(report.host_enqueue_us);
    }
    progress.show(step, loss, report);
    if (!std::isfinite(loss) || report.skipped) {
      throw InputError("the " + std::string(report.skipped ? "gradient" : "loss") + " of step " +
                       std::to_string(step + 1) +
                       " is not a finite number: training cannot go on; try a lower --lr.");
    }
  };
  using Ticket = decltype(enqueue(std::size_t{0}));
  std::optional<Ticket> before;
  for (std::size_t step = 0; step < o.steps; ++step) {
    Ticket ticket = enqueue(step);
    if (before) finish(step - 1, before->get());
    before.emplace(std::move(ticket));
    if (o.graph) {  // its batch and loss have one place each
      finish(step, before->get());
      before.reset();
    }
  }
  if (before) finish(o.steps - 1, before->get());
}

}  // namespace llama
