// Trains a small GPT on bytes of text, its training state sharded over in-process ranks. See
// options.hpp for the flags; without any it trains on this project's own sources and documents.
#include "linear.hpp"
#include "program.hpp"

int main(int argc, char** argv) {
  gpt::use_one_blas_thread();
  return gpt::run_program(argc, argv, gpt::host_machine(), gpt::train_fp32, gpt::train_bf16);
}
