// What a run measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <tessera/engine/report.hpp>

#include "options.hpp"

namespace llama {

struct Results {
  std::string strategy, precision;
  std::vector<double> losses;   ///< a mean a step, over all ranks
  std::vector<double> step_ms;  ///< of the timed steps
  std::vector<double> exposed_ms, communication_ms, enqueue_us;
  double last_norm = 0;
  std::uint64_t planned_bytes = 0, state_bytes = 0, activation_bytes = 0;
  std::uint64_t device_bytes = 0;  ///< in use on the device, as its driver says, at the end
  std::size_t kept = 0, elementwise = 0, blocks = 0;  ///< layers by what they compute again
  std::uint64_t parameters_digest = 0, moments_digest = 0;
  std::vector<std::string> choices;
  std::string transport;  ///< how bytes travelled between ranks
};

/// Counts the layers by what they compute again.
void count_layers(Results& results, const std::vector<Recompute>& recompute);

double median(std::vector<double> values);
double tokens_per_second(const Options& options, const Results& results);
/// Of 989 TFLOP/s a rank, what an H100 or H200 is sold with for dense bf16.
double mfu_percent(const Options& options, double tokens_per_second);

void print_summary(const Options& options, const Results& results);
/// Throws InputError when the file cannot be written.
void write_json(const Options& options, const Results& results);

}  // namespace llama
