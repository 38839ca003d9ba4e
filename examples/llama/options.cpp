#include "options.hpp"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <CLI/CLI.hpp>

#include "input_error.hpp"

namespace llama {
namespace {

CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
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

/// 0, or a number that an fp32 holds.
CLI::Validator number() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double value = 0.0;
        const char* const end = text.data() + text.size();
        const auto [at, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc{} && at == end &&
            (value == 0 || (value >= 1e-30 && value <= 1e30))) {
          return {};
        }
        return "must be 0 or a number from 1e-30 to 1e30, not '" + text + "'.";
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        return text.empty() ? "must name a file." : "";
      },
      "");
}

template <class Name>
void add_choice(CLI::App& app, const std::string& flag, const std::map<std::string, Name>& names,
                std::function<void(Name)> set, const std::string& help) {
  std::string list;
  for (const auto& [name, _] : names) list += (list.empty() ? "" : ", ") + name;
  app.add_option_function<std::string>(
         flag,
         [set = std::move(set), names, flag, list](const std::string& text) {
           const auto found = names.find(text);
           if (found == names.end()) {
             throw InputError(flag + " must be one of " + list + ", not '" + text + "'.");
           }
           set(found->second);
         },
         help)
      ->type_name(list);
}

void require_different(const Options& o) {
  const std::pair<const char*, const std::string*> files[] = {{"--data", &o.data},
                                                              {"--json", &o.json},
                                                              {"--trace", &o.trace},
                                                              {"--algorithms", &o.algorithms}};
  for (const auto& [flag, path] : files) {
    for (const auto& [other_flag, other] : files) {
      if (path == other || path->empty() || other->empty()) continue;
      std::error_code ignored;
      if (*path == *other || std::filesystem::equivalent(*path, *other, ignored)) {
        throw InputError(std::string(flag) + " and " + other_flag +
                         " must not name the same file.");
      }
    }
  }
}

void check(const Options& o) {
  const Config& c = o.model;
  const auto text = [](std::size_t value) { return std::to_string(value); };
  if (c.dim % c.heads != 0 || c.head_dim() % 16 != 0) {
    throw InputError("--dim " + text(c.dim) + " must be --heads " + text(c.heads) +
                     " times a multiple of 16.");
  }
  if (c.heads % c.kv_heads != 0) {
    throw InputError("--kv-heads " + text(c.kv_heads) + " must divide --heads " + text(c.heads) +
                     ".");
  }
  if (o.graph && o.ranks > 1) {
    throw InputError("--graph takes one rank, or processes: in-process ranks cannot be captured.");
  }
  if (o.spawn > 0 && o.ranks > 1) {
    throw InputError("--spawn and --ranks exclude each other.");
  }
  if (o.no_collectives &&
      (o.graph || o.digest || o.strategy != StrategyName::zero2 || o.untimed == 0)) {
    throw InputError(
        "--no-collectives takes --strategy zero2 and an untimed step, and neither --graph nor "
        "--digest.");
  }
  if (o.plain && (o.ranks > 1 || o.spawn > 0 || o.graph || o.digest || !o.trace.empty() ||
                  o.force_collectives || o.precision != PrecisionName::bf16)) {
    throw InputError(
        "--plain is one rank with bf16 and fp32 masters, without --graph, --digest, --trace and "
        "--force-collectives.");
  }
  if (o.precision != PrecisionName::fp32 && c.head_dim() > 128) {
    throw InputError("heads of " + text(c.head_dim()) + " are too wide: 128 at the most in bf16.");
  }
  if (o.precision == PrecisionName::fp32 && (o.sequence > 6000 || c.head_dim() > 256)) {
    throw InputError("--precision fp32 takes --seq up to 6000 and heads of up to 256.");
  }
  if (o.precision != PrecisionName::fp32 && o.sequence < 2) {
    throw InputError("--seq 1 is for --precision fp32: cuDNN's attention takes 2 tokens or more.");
  }
  if (o.documents != o.document_token.has_value()) {
    throw InputError("--documents and --document-token need each other.");
  }
  if (o.document_token && *o.document_token >= c.vocabulary) {
    throw InputError("--document-token " + text(*o.document_token) +
                     " is beyond the vocabulary's " + text(c.vocabulary) + " tokens.");
  }
  if (o.recompute && o.activation_gib) {
    throw InputError("--recompute and --activation-gib exclude each other.");
  }
  if (o.untimed >= o.steps) {
    throw InputError("--untimed " + text(o.untimed) + " leaves none of --steps " + text(o.steps) +
                     " to be timed.");
  }
  for (const std::string* path : {&o.json, &o.trace}) {
    // Before hours of training rather than after them.
    if (!path->empty() && !std::ofstream(*path, std::ios::app)) {
      throw InputError("cannot write to " + *path + ".");
    }
  }
  require_different(o);
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  constexpr std::uint64_t kMillion = 1000000;
  Options o;
  std::optional<std::size_t> layers, dim, ff, heads, kv_heads, vocabulary;
  CLI::App app("Trains a Llama-3 model on GPUs, its training state sharded by tessera.", "llama");
  app.option_defaults()->always_capture_default();
  app.add_option("--config", o.config, "sizes to begin with: tiny, 1b, 3b or 8b");
  app.add_option("--layers", layers, "instead of the config's")->check(whole(1, 1000));
  app.add_option("--dim", dim, "width of the residual stream")->check(whole(16, 8192));
  app.add_option("--ff", ff, "width of the feed-forward network")->check(whole(8, 65536));
  app.add_option("--heads", heads, "attention heads")->check(whole(1, 512));
  app.add_option("--kv-heads", kv_heads, "heads of keys and values")->check(whole(1, 512));
  app.add_option("--vocab", vocabulary, "tokens that there are (256 is enough for text)")
      ->check(whole(2, kMillion));
  app.add_flag("--tied", o.model.tied, "the head's weights are the embedding's");
  app.add_option("--ranks", o.ranks, "in-process ranks, which take the GPUs in turn")
      ->check(whole(1, 64));
  app.add_option("--spawn", o.spawn,
                 "processes to start, each with a GPU, over NCCL; torchrun and mpirun start them "
                 "as well")
      ->check(whole(1, 64));
  add_choice<TransportName>(
      app, "--transport",
      {{"auto", TransportName::automatic},
       {"kernels", TransportName::kernels},
       {"windows", TransportName::windows},
       {"peer", TransportName::peer}},
      [&](TransportName t) { o.transport = t; },
      "between processes: copies between the GPUs' memory (peer), NCCL's kernels, NCCL's copy "
      "engines over symmetric windows, or what is measured to be best (default: auto)");
  add_choice<StrategyName>(
      app, "--strategy",
      {{"replicate", StrategyName::replicate},
       {"zero2", StrategyName::zero2},
       {"zero3", StrategyName::zero3},
       {"zero3-keep", StrategyName::zero3_keep}},
      [&](StrategyName s) { o.strategy = s; }, "what is sharded (default: zero3)");
  add_choice<PrecisionName>(
      app, "--precision",
      {{"fp32", PrecisionName::fp32},
       {"bf16", PrecisionName::bf16},
       {"lean-bf16", PrecisionName::lean_bf16},
       {"split-bf16", PrecisionName::split_bf16},
       {"split-bf16-sum32", PrecisionName::split_bf16_sum32},
       {"pure-bf16", PrecisionName::pure_bf16}},
      [&](PrecisionName p) { o.precision = p; },
      "bf16: fp32 masters, moments and reduced gradients (default); lean-bf16: reduced gradients "
      "in bf16; split-bf16: and each master in two halves; split-bf16-sum32: such masters, reduced "
      "gradients in fp32; pure-bf16: bf16 alone");
  app.add_option("--batch", o.batch, "sequences of a rank in a micro-step")->check(whole(1, 65535));
  app.add_option("--seq", o.sequence, "tokens in a sequence")->check(whole(1, kMillion));
  app.add_option("--accumulate", o.accumulate,
                 "micro-steps in a step; all but bf16 and fp32 add their gradients up in bf16")
      ->check(whole(1, 4096));
  app.add_option("--steps", o.steps, "optimizer steps")->check(whole(1, 1000 * kMillion));
  app.add_option("--untimed", o.untimed, "first steps that the times leave out")
      ->check(whole(0, kMillion));
  app.add_option("--data", o.data,
                 "file to train on: bytes of text, or tokens as .u16 or .u32 (default: random "
                 "tokens)")
      ->check(not_empty());
  add_choice<TokenFormat>(
      app, "--format",
      {{"bytes", TokenFormat::bytes}, {"u16", TokenFormat::uint16}, {"u32", TokenFormat::uint32}},
      [&](TokenFormat f) { o.format = f; }, "of --data, instead of what its name says");
  app.add_flag(
      "--documents", o.documents,
      "attention does not cross from one document of a sequence to the next; the loss is "
      "that of every token all the same, a document's first after the one before included");
  app.add_option("--document-token", o.document_token,
                 "token that ends a document: of text a byte, such as 10, a line's end")
      ->check(whole(0, kMillion));
  app.add_option("--lr", o.learning_rate, "peak learning rate")->check(number());
  add_choice<Rate>(
      app, "--schedule", {{"constant", Rate::constant}, {"cosine", Rate::cosine}},
      [&](Rate r) { o.rate = r; }, "of the learning rate (default: constant)");
  app.add_option("--warmup", o.warmup, "steps in which the rate rises")->check(whole(0, kMillion));
  app.add_option("--clip", o.clip, "largest gradient norm; 0: none")->check(number());
  app.add_option("--weight-decay", o.weight_decay, "on matrices")->check(number());
  app.add_option("--seed", o.seed, "of weights and random tokens")->check(whole(0, UINT64_MAX));
  add_choice<Recompute>(
      app, "--recompute",
      {{"nothing", Recompute::nothing},
       {"elementwise", Recompute::elementwise},
       {"block", Recompute::block}},
      [&](Recompute r) { o.recompute = r; },
      "what backward computes again in every layer (default: by the budget)");
  app.add_option("--activation-gib", o.activation_gib,
                 "budget for activations (default: what the device has left)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--deterministic", o.deterministic,
               "the same bits in every run: the libraries' first proposals, or products by "
               "--algorithms, which is made by the first run");
  app.add_flag("!--no-tuning", o.tune, "take the libraries' first proposals, untimed");
  app.add_option("--algorithms", o.algorithms, "file that keeps the products' algorithms")
      ->check(not_empty());
  app.add_flag("--graph", o.graph, "capture the step as a CUDA graph and replay it");
  app.add_flag("--force-collectives", o.force_collectives,
               "gather and reduce at one rank as several would");
  app.add_flag("--plain", o.plain, "without tessera, in buffers of its own: to compare with");
  app.add_flag("--no-collectives", o.no_collectives,
               "send nothing and learn nothing after the untimed steps: what compute alone takes; "
               "with --strategy zero2, whose weights stay");
  app.add_flag("--sequential", o.sequential, "gather and reduce beside nothing");
  app.add_option("--prefetch-depth", o.prefetch_depth, "units gathered ahead")->check(whole(0, 64));
  app.add_option("--reductions-in-flight", o.reductions_in_flight,
                 "reductions that backward runs ahead of")
      ->check(whole(0, 64));
  app.add_option("--bucket-mib", o.bucket_mib,
                 "of full buffers in one collective; 0: a collective a unit")
      ->check(whole(0, 65536));
  app.add_option("--json", o.json, "write the results to this file")->check(not_empty());
  app.add_option("--trace", o.trace, "write a Chrome trace to this file")->check(not_empty());
  app.add_flag("--digest", o.digest, "hash parameters and moments at the end");
  app.add_flag("--quiet", o.quiet, "no progress lines");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what());
  }
  const bool tied = o.model.tied;
  const std::optional<Config> named = config_named(o.config);
  if (!named) throw InputError("--config must be tiny, 1b, 3b or 8b, not '" + o.config + "'.");
  o.model = *named;
  o.model.tied = tied;
  o.model.layers = layers.value_or(o.model.layers);
  o.model.dim = dim.value_or(o.model.dim);
  o.model.ff = ff.value_or(o.model.ff);
  o.model.heads = heads.value_or(o.model.heads);
  o.model.kv_heads = kv_heads.value_or(o.model.kv_heads);
  o.model.vocabulary = vocabulary.value_or(o.model.vocabulary);
  if (o.model.dim % 8 != 0 || o.model.ff % 8 != 0) {
    throw InputError("--dim and --ff must be multiples of 8.");
  }
  if (o.deterministic && o.algorithms.empty()) o.tune = false;
  check(o);
  return o;
}

}  // namespace llama
