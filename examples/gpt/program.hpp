// What the gpt programs do, whatever they train on: options, text, training, results.
#pragma once

#include "options.hpp"
#include "train.hpp"

namespace gpt {

using Train = void (*)(const Options&, const Text&, Results&, Traces&);

/// The whole of main: returns the exit status, and has printed the error if there was one.
int run_program(int argc, char** argv, const Machine& machine, Train fp32, Train bf16);

}  // namespace gpt
