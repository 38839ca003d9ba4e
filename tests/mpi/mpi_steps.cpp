// Trains a small model over the ranks that mpirun started, on a mesh of two replicas where they are
// even, for as many steps as it is told; "step N" after each. What fails is said, and ends the job.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include <tessera/mpi.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;
using Backend = ts::HostBackend<ts::Mpi>;

namespace {

void train(ts::Mpi ranks, int steps) {
  const int replicas = ranks.size() % 2 == 0 ? 2 : 1;
  const ts::MeshShape shape{.replicate = replicas, .shard = ranks.size() / replicas};
  ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, Backend> model(ts::Mesh<Backend>(ranks, shape),
                                                                ts::AdamW{.learning_rate = 1e-3f});
  std::span<float> weights[3];
  ts::Unit units[3];
  for (int u = 0; u < 3; ++u) {
    weights[u] = std::span<float>(static_cast<float*>(nullptr), 20000);
    units[u] = model.add_unit("layer" + std::to_string(u), weights[u]);
  }
  model.materialize([](const ts::TensorInfo& info, std::uint64_t index) {
    return ts::random_normal(1, info.id, index);
  });
  for (int step = 0; step < steps; ++step) {
    for (const ts::Unit unit : units) const auto lease = model.forward(unit);
    for (int u = 2; u >= 0; --u) {
      auto lease = model.backward(units[u]);
      const auto gradient = lease.gradient(weights[u]);
      for (std::uint64_t i = 0; i < gradient.size; ++i) {
        gradient.data[i] = weights[u][i] + static_cast<float>(ranks.rank());
      }
    }
    (void)model.step().get();
    if (ranks.rank() == 0) std::printf("step %d\n", step);
    std::fflush(stdout);
  }
  const std::uint64_t digest = model.parameters_digest();
  if (ranks.rank() == 0) std::printf("digest %016llx\n", static_cast<unsigned long long>(digest));
}

}  // namespace

// mpi_steps STEPS TIMEOUT_SECONDS
int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 3;
  const std::chrono::seconds timeout(argc > 2 ? std::atoi(argv[2]) : 60);
  try {
    train(ts::Mpi::world({.timeout = timeout}), steps);
  } catch (const ts::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    std::fflush(stderr);
    ts::Mpi::end_job(1);
  }
}
