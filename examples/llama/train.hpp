// One function a precision, each in a source of its own, as a Shard is a lot to compile; and one
// without tessera. `processes`: this process's rank among them; null: ranks are threads.
#pragma once

#include <vector>
#include <tessera/engine/report.hpp>

#include "options.hpp"
#include "ranks.hpp"
#include "results.hpp"
#include "tokens.hpp"

namespace llama {

/// What ran on the streams, a vector a rank.
using Traces = std::vector<std::vector<tessera::TraceEvent>>;

void train_fp32(const Options&, const TokenFile*, Ranks*, Results&, Traces&);
void train_plain(const Options&, const TokenFile*, Results&);
void train_bf16(const Options&, const TokenFile*, Ranks*, Results&, Traces&);
void train_lean_bf16(const Options&, const TokenFile*, Ranks*, Results&, Traces&);
void train_split_bf16(const Options&, const TokenFile*, Ranks*, Results&, Traces&);
void train_split_bf16_sum32(const Options&, const TokenFile*, Ranks*, Results&, Traces&);
void train_pure_bf16(const Options&, const TokenFile*, Ranks*, Results&, Traces&);

}  // namespace llama
