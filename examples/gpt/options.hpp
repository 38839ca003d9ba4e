// The command line: every flag, its default and its limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tessera/comm/mesh_shape.hpp>

#include "config.hpp"

namespace gpt {

enum class StrategyName { replicate, zero1, zero2, zero3, zero3_keep };
enum class PrecisionName { fp32, bf16 };
enum class ScheduleName { overlapped, sequential };
enum class AccumulationName { each, once };

struct Options {
  std::string data;  // empty: the project's own text
  std::size_t ranks = 4;
  tessera::MeshShape mesh{.shard = 4};  // of these ranks
  bool sequence_parallel = false;
  StrategyName strategy = StrategyName::zero3;
  PrecisionName precision = PrecisionName::fp32;
  ScheduleName schedule = ScheduleName::overlapped;
  AccumulationName accumulation = AccumulationName::once;
  Config model;
  std::size_t steps = 1200;
  std::size_t batch = 12;  // global
  std::size_t accumulate = 1;
  bool recompute = false;
  std::size_t prefetch_depth = 1;
  std::optional<std::size_t> bucket_bytes;  // none: the library's default
  double learning_rate = 1e-3;
  double weight_decay = 0.1;
  double clip = 1.0;                  // 0: none
  std::optional<std::size_t> warmup;  // none: a twentieth of the steps
  std::uint64_t seed = 1;
  std::size_t sample = 400;
  std::string json;
  std::string trace;

  /// Ranks that see other data than each other.
  std::size_t data_ranks() const { return static_cast<std::size_t>(mesh.data_ranks()); }
  std::size_t sequences() const { return batch / (data_ranks() * accumulate); }
  /// The model as the rank at `place` on the tensor axis has it.
  Config model_part(int place) const {
    Config part = model;
    part.tensor = {place, mesh.tensor};
    return part;
  }
  std::size_t warmup_steps() const { return warmup.value_or(steps / 20); }
};

/// What is to run the job: for the help text, and to refuse what cannot fit.
struct Machine {
  const char* program;
  double bytes;
  std::size_t processes = 0;  ///< the ranks, where they are processes; 0: threads
  bool first = true;          ///< of the ranks: it is the one that prints and writes
  bool tensor_axis = true;    ///< whether its kernels compute a part of a layer
};
/// The processors and the memory of the host.
Machine host_machine();

/// None: help was asked for and printed. Throws InputError for anything that cannot be run.
std::optional<Options> parse_options(int argc, const char* const* argv,
                                     const Machine& machine = host_machine());

}  // namespace gpt
