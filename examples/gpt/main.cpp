// Trains a small GPT on bytes of text, its training state sharded over in-process ranks, or over
// the processes that mpirun started. See options.hpp for the flags; without any it trains on this
// project's own sources and documents.
#include "host_ranks.hpp"
#include "linear.hpp"
#include "program.hpp"

int main(int argc, char** argv) {
  gpt::use_one_blas_thread();
  gpt::Machine machine = gpt::host_machine();
#if defined(GPT_WITH_MPI)
  if (tessera::Mpi::launched()) {
    const tessera::Mpi ranks = tessera::Mpi::world();
    machine.program = "gpt";
    machine.processes = static_cast<std::size_t>(ranks.size());
    machine.first = ranks.rank() == 0;
  }
#endif
  const int status = gpt::run_program(argc, argv, machine, gpt::train_fp32, gpt::train_bf16);
#if defined(GPT_WITH_MPI)
  if (status != 0 && machine.processes > 0) tessera::Mpi::end_job(status);
#endif
  return status;
}
