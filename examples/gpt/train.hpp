// One training run, for the policy that the options name. A translation unit a precision: each
// strategy is a type, and so a Shard of its own to compile.
#pragma once

#include <vector>
#include <tessera/tessera.hpp>

#include "options.hpp"
#include "results.hpp"
#include "text.hpp"

namespace gpt {

using Traces = std::vector<std::vector<tessera::TraceEvent>>;

void train_fp32(const Options& options, const Text& text, Results& results, Traces& traces);
void train_bf16(const Options& options, const Text& text, Results& results, Traces& traces);

}  // namespace gpt
