// What the command line asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "activations.hpp"
#include "config.hpp"
#include "tokens.hpp"

namespace llama {

enum class StrategyName : std::uint8_t { replicate, zero2, zero3, zero3_keep };
/// See precisions.hpp.
enum class PrecisionName : std::uint8_t {
  fp32,
  bf16,
  lean_bf16,
  split_bf16,
  split_bf16_sum32,
  pure_bf16
};
/// How bytes travel between processes.
enum class TransportName : std::uint8_t { automatic, kernels, windows, peer };
enum class Rate : std::uint8_t { constant, cosine };

struct Options {
  Config model;
  std::string config = "tiny";
  std::size_t ranks = 1;   ///< threads that take the GPUs in turn, or processes with one each
  std::size_t spawn = 0;   ///< processes to start; 0: none
  bool processes = false;  ///< ranks are processes, over NCCL
  TransportName transport = TransportName::automatic;
  StrategyName strategy = StrategyName::zero3;
  PrecisionName precision = PrecisionName::bf16;
  std::size_t batch = 4;  ///< sequences of a rank in a micro-step
  std::size_t sequence = 1024;
  std::size_t accumulate = 1;
  std::size_t steps = 20;
  std::size_t untimed = 4;  ///< first steps that the times leave out

  std::string data;  ///< empty: random tokens
  std::optional<TokenFormat> format;
  bool documents = false;  ///< attention keeps within them
  std::optional<std::size_t> document_token;

  double learning_rate = 3e-4;
  Rate rate = Rate::constant;
  std::size_t warmup = 0;
  double clip = 1.0;
  double weight_decay = 0.1;
  std::uint64_t seed = 1;

  std::optional<Recompute> recompute;    ///< of all layers; absent: by the budget
  std::optional<double> activation_gib;  ///< the budget; absent: what the device has left
  bool deterministic = false;
  bool tune = true;
  std::string algorithms;
  bool graph = false;
  bool force_collectives = false;
  bool plain = false;
  bool no_collectives = false;  ///< in the timed steps
  bool sequential = false;      ///< nothing is in flight beside compute
  std::size_t prefetch_depth = 1;
  std::size_t reductions_in_flight = 1;
  std::size_t bucket_mib = 0;

  std::string json;
  std::string trace;
  bool digest = false;
  bool quiet = false;

  std::size_t rows() const { return batch * sequence; }
  std::size_t tokens_per_step() const { return rows() * accumulate * ranks; }
};

/// Empty after --help. Throws InputError.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace llama
