// One function a precision, each in a source of its own: a Shard is a lot to compile.
#pragma once

#include "options.hpp"
#include "results.hpp"
#include "tokens.hpp"
#include "train_traces.hpp"

namespace llama {

void train_fp32(const Options&, const TokenFile*, Results&, Traces&);
void train_bf16(const Options&, const TokenFile*, Results&, Traces&);

}  // namespace llama
