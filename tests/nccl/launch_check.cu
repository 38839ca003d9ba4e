// Processes started as torchrun starts them: this program runs itself once a device, with RANK,
// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, and compares what they end with.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <tessera/nccl.hpp>

namespace {

namespace ts = tessera;

int train(const std::string& result) {
  const ts::Nccl ranks = ts::Nccl::from_environment();
  float* weights = nullptr;
  ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, ts::CudaNccl> model{
      ts::Mesh<ts::CudaNccl>(ranks), ts::AdamW{.learning_rate = 0.1f}};
  const ts::Unit unit = model.add_unit("unit", ts::tensor(weights, {12345}));
  model.materialize([](const ts::TensorInfo&, std::uint64_t i) { return 1.0f + float(i % 7); });
  for (int step = 0; step < 4; ++step) {
    { const auto lease = model.forward(unit); }
    {
      auto lease = model.backward(unit);
      const auto gradient = lease.gradient(weights);
      ts::detail::check_cuda(cudaMemcpyAsync(gradient.data, weights, gradient.size * sizeof(float),
                                             cudaMemcpyDeviceToDevice, cudaStreamPerThread),
                             "a test's copy");
    }
    if (model.step().get().skipped) return 1;
  }
  const std::uint64_t digest = model.parameters_digest();
  std::FILE* file = std::fopen(result.c_str(), "w");
  if (file == nullptr) return 1;
  std::fprintf(file, "%016llx", static_cast<unsigned long long>(digest));
  return std::fclose(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    try {
      return train(argv[1]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
      return 1;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU: nothing was tested\n");
    return std::getenv("TESSERA_GPU_REQUIRED") != nullptr ? 1 : 77;
  }
  const std::string base = "/tmp/tessera_launch_" + std::to_string(getpid()) + "_";
  const std::string port = std::to_string(20000 + getpid() % 20000);
  std::vector<pid_t> children;
  for (int r = 0; r < devices; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const std::string rank = std::to_string(r), size = std::to_string(devices);
      setenv("RANK", rank.c_str(), 1);
      setenv("LOCAL_RANK", rank.c_str(), 1);
      setenv("WORLD_SIZE", size.c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", port.c_str(), 1);
      execl("/proc/self/exe", argv[0], (base + rank).c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    children.push_back(child);
  }
  int failures = 0;
  for (pid_t child : children) {
    int status = 0;
    failures += waitpid(child, &status, 0) != child || status != 0;
  }
  std::string first;
  for (int r = 0; r < devices; ++r) {
    const std::string path = base + std::to_string(r);
    char digest[17] = {};
    if (std::FILE* file = std::fopen(path.c_str(), "r")) {
      failures += std::fread(digest, 1, 16, file) != 16;
      std::fclose(file);
    } else {
      ++failures;
    }
    std::remove(path.c_str());
    if (r == 0) first = digest;
    failures += first != digest;
    std::printf("rank %d of %d: %s\n", r, devices, digest);
  }
  return failures == 0 ? 0 : 1;
}
