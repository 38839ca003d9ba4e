// A kernel that faults inside a lease: one clear message from the next call that looks, and an end.
// A program of its own, since nothing works on the device afterwards.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <tessera/cuda.hpp>

namespace {

__global__ void write_through_null(int* nowhere) { *nowhere = 1; }

}  // namespace

int main() {
  namespace ts = tessera;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU: nothing was tested\n");
    return std::getenv("TESSERA_GPU_REQUIRED") != nullptr ? 1 : 77;
  }
  std::string said;
  try {
    float* weights = nullptr;
    ts::Options options;
    options.collectives_at_one_rank = true;
    ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, ts::Cuda> model(ts::Mesh<ts::Cuda>::single(),
                                                                   ts::AdamW{}, options);
    const ts::Unit unit = model.add_unit("unit", ts::tensor(weights, {1000}));
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    for (int step = 0; step < 3; ++step) {
      { const auto lease = model.forward(unit); }
      {
        auto lease = model.backward(unit);
        (void)lease.gradient(weights);
        if (step == 1) write_through_null<<<1, 1, 0, cudaStreamPerThread>>>(nullptr);
      }
      (void)model.step().get();
    }
  } catch (const ts::Error& error) {
    said = error.what();
  }
  std::printf("%s\n", said.c_str());
  return said.find("a kernel of this process faulted (cudaErrorIllegalAddress)") !=
                 std::string::npos
             ? 0
             : 1;
}
