#include "results.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "input_error.hpp"

namespace llama {
namespace {

constexpr double kPeak = 989e12;

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

std::string hexadecimal(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

void count_layers(Results& results, const std::vector<Recompute>& recompute) {
  for (const Recompute of_layer : recompute) {
    switch (of_layer) {
      case Recompute::nothing: ++results.kept; break;
      case Recompute::elementwise: ++results.elementwise; break;
      case Recompute::block: ++results.blocks; break;
    }
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double tokens_per_second(const Options& options, const Results& results) {
  const double ms = median(results.step_ms);
  return ms > 0 ? static_cast<double>(options.tokens_per_step()) * 1e3 / ms : 0;
}

double mfu_percent(const Options& options, double tokens_per_second) {
  return 100.0 * tokens_per_second / static_cast<double>(options.ranks) *
         options.model.flops_per_token(options.sequence) / kPeak;
}

void print_summary(const Options& o, const Results& r) {
  std::printf(
      "%s, %s: %.2f G parameters, %zu x %zu tokens a step\n"
      "%.0f tokens/s, step %.2f ms, %.1f %% of 989 TFLOP/s; exposed communication %.2f of %.2f ms; "
      "%.2f ms of the host\n"
      "memory: state %.2f GiB, planned %.2f, activations %.2f (layers that compute nothing again "
      "%zu, norms and SwiGLU %zu, all %zu), device %.2f\n",
      r.strategy.c_str(), r.precision.c_str(), static_cast<double>(o.model.parameters()) / 1e9,
      o.batch * o.accumulate * o.ranks, o.sequence, tokens_per_second(o, r), median(r.step_ms),
      mfu_percent(o, tokens_per_second(o, r)), median(r.exposed_ms), median(r.communication_ms),
      median(r.enqueue_us) / 1e3, gib(r.state_bytes), gib(r.planned_bytes), gib(r.activation_bytes),
      r.kept, r.elementwise, r.blocks, gib(r.device_bytes));
  if (o.ranks > 1) std::printf("transport: %s\n", r.transport.c_str());
}

void write_json(const Options& o, const Results& r) {
  const auto [least, most] = std::minmax_element(r.step_ms.begin(), r.step_ms.end());
  nlohmann::json all = {
      {"config", o.config},
      {"strategy", r.strategy},
      {"precision", r.precision},
      {"ranks", o.ranks},
      {"batch", o.batch},
      {"sequence", o.sequence},
      {"accumulate", o.accumulate},
      {"layers", o.model.layers},
      {"dim", o.model.dim},
      {"ff", o.model.ff},
      {"heads", o.model.heads},
      {"kv_heads", o.model.kv_heads},
      {"vocabulary", o.model.vocabulary},
      {"tied", o.model.tied},
      {"data", o.data},
      {"documents", o.documents},
      {"seed", o.seed},
      {"learning_rate", o.learning_rate},
      {"clip", o.clip},
      {"weight_decay", o.weight_decay},
      {"tuned", o.tune},
      {"prefetch_depth", o.prefetch_depth},
      {"parameters", o.model.parameters()},
      {"deterministic", o.deterministic},
      {"graph", o.graph},
      {"plain", o.plain},
      {"force_collectives", o.force_collectives},
      {"steps", o.steps},
      {"timed_steps", r.step_ms.size()},
      {"tokens_per_s", tokens_per_second(o, r)},
      {"step_ms_median", median(r.step_ms)},
      {"step_ms_min", r.step_ms.empty() ? 0.0 : *least},
      {"step_ms_max", r.step_ms.empty() ? 0.0 : *most},
      {"mfu_pct", mfu_percent(o, tokens_per_second(o, r))},
      {"flops_per_token", o.model.flops_per_token(o.sequence)},
      {"exposed_ms", median(r.exposed_ms)},
      {"communication_ms", median(r.communication_ms)},
      {"host_enqueue_us", median(r.enqueue_us)},
      {"first_loss", r.losses.empty() ? 0.0 : r.losses.front()},
      {"last_loss", r.losses.empty() ? 0.0 : r.losses.back()},
      {"losses", r.losses},
      {"last_grad_norm", r.last_norm},
      {"state_bytes", r.state_bytes},
      {"planned_bytes", r.planned_bytes},
      {"activation_bytes", r.activation_bytes},
      {"device_bytes", r.device_bytes},
      {"layers_recomputing",
       {{"nothing", r.kept}, {"elementwise", r.elementwise}, {"block", r.blocks}}},
      {"choices", r.choices},
      {"transport", r.transport},
      {"processes", o.processes},
      {"no_collectives", o.no_collectives},
      {"sequential", o.sequential},
      {"bucket_mib", o.bucket_mib},
      {"reductions_in_flight", o.reductions_in_flight}};
  if (o.document_token) all["document_token"] = *o.document_token;
  if (o.digest) {
    all["params_digest"] = hexadecimal(r.parameters_digest);
    all["moments_digest"] = hexadecimal(r.moments_digest);
  }
  std::ofstream file(o.json);
  file << all.dump(1) << '\n';
  file.close();
  if (!file) throw InputError("cannot write the results to " + o.json + ".");
}

}  // namespace llama
