// Parsing and checking the command line.
#include "options.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <map>
#include <set>
#include <CLI/CLI.hpp>

#include "input_error.hpp"

namespace gpt {

namespace detail {

/// Limits are stated in the message, and kept low enough that no size computed from them overflows.
inline CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        std::uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [at, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc{} && at == end && value >= least && value <= most) return {};
        return "must be a whole number from " + std::to_string(least) + " to " +
               std::to_string(most) + ", not '" + text + "'.";
      },
      "");
}

inline CLI::Validator finite() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double value = 0.0;
        const char* const end = text.data() + text.size();
        const auto [at, error] = std::from_chars(text.data(), end, value);
        // Compared with bounds rather than asked with isfinite, which -ffast-math may assume.
        if (error == std::errc{} && at == end && value >= 0.0 && value <= 1e30) return {};
        return "must be a finite number that is not negative, not '" + text + "'.";
      },
      "");
}

/// The norm is compared in fp32, where less would be zero (no clipping) or lose its digits.
inline CLI::Validator no_denormal() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double value = 0.0;
        std::from_chars(text.data(), text.data() + text.size(), value);
        if (value == 0.0 || value >= 1.2e-38) return {};
        return "must be 0 or 1.2e-38 and more, not '" + text + "'.";
      },
      "");
}

inline CLI::Validator path() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        return text.empty() ? "must name a file, not ''." : "";
      },
      "");
}

template <class Name>
void add_choice(CLI::App& app, const std::string& flag, Name& value,
                const std::map<std::string, Name>& names, const std::string& help) {
  std::string list;
  for (const auto& [name, _] : names) list += (list.empty() ? "" : ", ") + name;
  app.add_option_function<std::string>(
         flag,
         [&value, names, flag, list](const std::string& text) {
           const auto found = names.find(text);
           if (found == names.end()) {
             throw InputError(flag + " must be one of " + list + ", not '" + text + "'.");
           }
           value = found->second;
         },
         help)
      ->type_name(list);
}

/// "replicate=R,shard=S,tensor=T" in any order; axes that are left out are 1.
inline tessera::MeshShape mesh_of(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    throw InputError("--mesh must be replicate=R,shard=S,tensor=T, or some of these, not '" + text +
                     "': " + why + ".");
  };
  tessera::MeshShape mesh;
  const std::map<std::string, int*> axes = {
      {"replicate", &mesh.replicate}, {"shard", &mesh.shard}, {"tensor", &mesh.tensor}};
  std::set<std::string> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const auto axis = axes.find(name);
    if (axis == axes.end()) refuse("there is no axis '" + name + "'");
    if (!seen.insert(name).second) refuse("the axis " + name + " is named twice");
    const char* const last = part.data() + part.size();
    const char* const first = std::min(part.data() + equals + 1, last);
    const auto [at, error] = std::from_chars(first, last, *axis->second);
    if (error != std::errc{} || at != last || *axis->second < 1 || *axis->second > 256) {
      refuse("an axis has a whole number of ranks from 1 to 256");
    }
    begin = end + 1;
  }
  if (mesh.size() > 256) refuse("these are more than 256 ranks");
  return mesh;
}

/// Bytes that the job needs at the least: activations of every rank that has data of its own, and
/// weights, gradients and moments once, or as often as nothing shards them. In floating point: it
/// cannot overflow.
inline double least_bytes(const Options& o) {
  const double rows = static_cast<double>(o.sequences()) * static_cast<double>(o.model.context);
  const double width = static_cast<double>(o.model.width);
  const double layers = static_cast<double>(o.model.layers);
  const double context = static_cast<double>(o.model.context);
  const double a_block = rows * 16.0 * width + rows * static_cast<double>(o.model.heads) * context;
  const double kept = o.recompute ? a_block : layers * a_block;
  const double ranks = static_cast<double>(o.data_ranks());
  const double copies = o.strategy == StrategyName::replicate ? ranks : o.mesh.replicate;
  const double weights = layers * 12.0 * width * width + (256.0 + context) * width;
  return 4.0 * ranks * (kept + layers * rows * width) + 16.0 * copies * weights;
}

}  // namespace detail

Machine host_machine() {
  return {"./dev quickstart", static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                                  static_cast<double>(sysconf(_SC_PAGESIZE))};
}

/// What a single flag cannot tell. Nothing has been allocated or read yet.
static void check(const Options& o, const Machine& machine) {
  const auto number = [](std::size_t value) { return std::to_string(value); };
  if (o.model.width % o.model.heads != 0) {
    throw InputError("--heads " + number(o.model.heads) + " must divide --width " +
                     number(o.model.width) + ".");
  }
  if (o.batch % (o.data_ranks() * o.accumulate) != 0) {
    const bool all = o.data_ranks() == o.ranks;
    throw InputError("--batch " + number(o.batch) + " must be a multiple of " +
                     (all ? "--ranks " : "the ranks with other data, replicate times shard, ") +
                     number(o.data_ranks()) + " times --accumulate " + number(o.accumulate) + ".");
  }
  const auto tensor = static_cast<std::size_t>(o.mesh.tensor);
  if (tensor > 1 && !machine.tensor_axis) {
    throw InputError(std::string("--mesh must have tensor=1: the kernels of ") + machine.program +
                     " cannot compute a part of a layer.");
  }
  if (tensor > o.model.heads) {
    throw InputError("--mesh must have no more tensor ranks than --heads " + number(o.model.heads) +
                     ", not " + number(tensor) + ": a rank computes whole heads.");
  }
  if (o.sequence_parallel && tensor == 1) {
    throw InputError("--sequence-parallel must have a --mesh with tensor=2 or more.");
  }
  const double needed = detail::least_bytes(o) / 0x1p30;
  const double there = machine.bytes / 0x1p30;
  if (needed > there) {
    char message[160];
    std::snprintf(message, sizeof message,
                  "a model and batch of these sizes cannot fit: they need %.3g GiB or more, and "
                  "this machine has %.3g.",
                  needed, there);
    throw InputError(message);
  }
}

std::optional<Options> parse_options(int argc, const char* const* argv, const Machine& machine) {
  using detail::add_choice;
  using detail::finite;
  using detail::path;
  using detail::whole;
  constexpr std::uint64_t kMillion = 1000000;
  Options o;
  CLI::App app("Trains a small GPT on bytes, its training state sharded over in-process ranks.",
               machine.program);
  app.option_defaults()->always_capture_default();
  app.add_option("--data", o.data, "text to train on (default: this project's own)")->check(path());
  CLI::Option* const ranks = app.add_option(
      "--ranks", o.ranks, "in-process ranks; under mpirun its processes are the ranks");
  ranks->check(whole(1, 256));
  std::string mesh;
  app.add_option("--mesh", mesh,
                 "the ranks on axes, replicate=R,shard=S,tensor=T: copies of what shard ranks keep "
                 "a piece of, and ranks that compute layers together (default: all on shard)");
  app.add_flag("--sequence-parallel", o.sequence_parallel,
               "tensor ranks share out the rows of norms and residuals");
  add_choice<StrategyName>(
      app, "--strategy", o.strategy,
      {{"replicate", StrategyName::replicate},
       {"zero1", StrategyName::zero1},
       {"zero2", StrategyName::zero2},
       {"zero3", StrategyName::zero3},
       {"zero3-keep", StrategyName::zero3_keep}},
      "what is sharded (default: zero3; zero3-keep: gathered until backward has used it)");
  add_choice<PrecisionName>(app, "--precision", o.precision,
                            {{"fp32", PrecisionName::fp32}, {"bf16", PrecisionName::bf16}},
                            "of weights and gradients (default: fp32)");
  app.add_option("--steps", o.steps, "optimizer steps")->check(whole(0, 1000 * kMillion));
  app.add_option("--batch", o.batch, "sequences in a step, all ranks together")
      ->check(whole(1, kMillion));
  app.add_option("--context", o.model.context, "bytes in a sequence")->check(whole(1, kMillion));
  app.add_option("--layers", o.model.layers, "transformer blocks")->check(whole(1, 1000));
  app.add_option("--heads", o.model.heads, "attention heads")->check(whole(1, 65536));
  app.add_option("--width", o.model.width, "of the residual stream")->check(whole(1, 65536));
  app.add_option("--accumulate", o.accumulate, "micro-steps in a step")->check(whole(1, kMillion));
  add_choice<AccumulationName>(
      app, "--accumulation", o.accumulation,
      {{"each", AccumulationName::each}, {"once", AccumulationName::once}},
      "reduce gradients after each micro-step or once a step (default: once)");
  app.add_flag("--recompute", o.recompute, "recompute each block's activations in backward");
  add_choice<ScheduleName>(
      app, "--schedule", o.schedule,
      {{"overlapped", ScheduleName::overlapped}, {"sequential", ScheduleName::sequential}},
      "communication beside compute or not (default: overlapped)");
  app.add_option("--prefetch-depth", o.prefetch_depth, "units gathered ahead")->check(whole(0, 64));
  app.add_option("--bucket-bytes", o.bucket_bytes, "of one reduction")
      ->check(whole(0, std::uint64_t{1} << 40));
  app.add_option("--clip", o.clip, "largest gradient norm; 0: none")
      ->check(finite())
      ->check(detail::no_denormal());
  app.add_option("--lr", o.learning_rate, "peak learning rate")->check(finite());
  app.add_option("--warmup", o.warmup, "warm-up steps (default: a twentieth)")
      ->check(whole(0, 1000 * kMillion));
  app.add_option("--weight-decay", o.weight_decay, "on matrices")->check(finite());
  app.add_option("--seed", o.seed, "of weights, batches and sample")->check(whole(0, UINT64_MAX));
  app.add_option("--sample", o.sample, "bytes of text to write at the end")
      ->check(whole(0, kMillion));
  app.add_option("--json", o.json, "write the results to this file")->check(path());
  app.add_option("--trace", o.trace, "write a Chrome trace to this file")->check(path());
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what());
  }
  if (app.count("--mesh") > 0) {
    o.mesh = detail::mesh_of(mesh);
    const auto size = static_cast<std::size_t>(o.mesh.size());
    if (ranks->count() > 0 && o.ranks != size) {
      throw InputError("--ranks is " + std::to_string(o.ranks) + ", but --mesh has " +
                       std::to_string(size) + " ranks: they must agree.");
    }
    if (machine.processes > 0 && machine.processes != size) {
      throw InputError("--mesh has " + std::to_string(size) + " ranks, but mpirun started " +
                       std::to_string(machine.processes) + " processes, which must be the ranks.");
    }
    o.ranks = size;
  } else if (machine.processes > 0) {
    if (ranks->count() > 0 && o.ranks != machine.processes) {
      throw InputError("--ranks is " + std::to_string(o.ranks) + ", but mpirun started " +
                       std::to_string(machine.processes) + " processes, which are the ranks.");
    }
    o.ranks = machine.processes;
  }
  if (app.count("--mesh") == 0) o.mesh = {.shard = static_cast<int>(o.ranks)};
  check(o, machine);
  return o;
}

}  // namespace gpt
