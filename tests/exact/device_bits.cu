// Compares what a CUDA device and the host make of the same values, bit by bit (all NaNs are one).
// Prints a line per subject and exits with 1 if any differs. To be compiled with several flags:
// none, -use_fast_math, -Xcompiler -march=native,-ffast-math.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "workload.hpp"

namespace {

int failures = 0;

void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) {
    std::printf("CUDA: %s\n", cudaGetErrorString(error));
    std::exit(2);
  }
}

/// A vector's copy on the device, for as long as it lives.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : count_(host.size()) {
    check_cuda(cudaMalloc(&data_, count_ * sizeof(T)));
    check_cuda(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return data_; }
  std::vector<T> copy() const {
    std::vector<T> host(count_);
    check_cuda(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

std::uint64_t digest_of(const std::vector<float>& values) {
  tessera::Digest digest;
  digest.update(values.data(), values.size());
  return digest.value();
}
std::uint64_t digest_of(const std::vector<double>& values) {
  tessera::Digest digest;
  for (const double value : values) add_bytes(digest, value);
  return digest.value();
}

template <class T>
void compare(const char* subject, bool wild, const std::vector<T>& host,
             const OnDevice<T>& device) {
  const std::uint64_t expected = digest_of(host);
  const std::uint64_t got = digest_of(device.copy());
  std::printf("%-20s %-5s host %016" PRIx64 " device %016" PRIx64 " %s\n", subject,
              wild ? "wild" : "tame", expected, got, expected == got ? "" : "DIFFERENT");
  failures += expected != got;
}

__device__ std::uint64_t thread_index() {
  return blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
}
unsigned blocks_of(std::uint64_t n) { return static_cast<unsigned>((n + 255) / 256); }

template <class F, class... Refs, class... R>
__device__ void apply_one(std::uint64_t i, const F& f, Refs... refs, R... lanes) {
  f(tessera::detail::as_argument(refs, lanes)...);
  (tessera::detail::store_lanes(refs, i, lanes), ...);
}

/// elementwise() by a thread per element.
template <class F, class... Refs>
__global__ void device_elementwise(std::uint64_t n, F f, Refs... refs) {
  using R = tessera::Lanes<1>;
  const std::uint64_t i = thread_index();
  if (i < n) apply_one<F, Refs...>(i, f, refs..., tessera::detail::load_lanes<R>(refs, i)...);
}

template <class O, std::size_t... I>
void compare_optimizer(const char* name, const O& optimizer, bool wild, std::index_sequence<I...>) {
  Floats weights = make_values(1, wild);
  Floats states[sizeof...(I)];
  for (Floats& state : states) state.assign(kElements, 0.0f);
  const OnDevice<float> device_weights(weights);
  const OnDevice<float> device_states[] = {OnDevice<float>(states[I])...};
  typename O::Clock clock;
  for (std::uint64_t step = 0; step != 8; ++step) {
    const Floats gradient = make_values(10 + step, wild);
    const OnDevice<float> device_gradient(gradient);
    optimizer.advance(clock);
    const Apply<O> apply{
        optimizer.coefficients(clock, optimizer.learning_rate, optimizer.weight_decay)};
    tessera::elementwise(kElements, apply, tessera::InOut<float>{weights.data()},
                         tessera::In<float>{gradient.data()},
                         tessera::InOut<float>{states[I].data()}...);
    device_elementwise<<<blocks_of(kElements), 256>>>(
        kElements, apply, tessera::InOut<float>{device_weights.data()},
        tessera::In<float>{device_gradient.data()},
        tessera::InOut<float>{device_states[I].data()}...);
    check_cuda(cudaDeviceSynchronize());
  }
  compare(name, wild, weights, device_weights);
  (compare(name, wild, states[I], device_states[I]), ...);
}

template <class O>
void compare_optimizer(const char* name, const O& optimizer, bool wild) {
  compare_optimizer(name, optimizer, wild, std::make_index_sequence<std::size_t{O::state_count}>());
}

void compare_elementwise(bool wild) {
  const Floats a = make_values(20, wild);
  const Floats b = make_values(21, wild);
  Floats out(kElements);
  const OnDevice<float> device_a(a), device_b(b), device_out(out);
  tessera::elementwise(kElements, Identities{}, tessera::In<float>{a.data()},
                       tessera::In<float>{b.data()}, tessera::Out<float>{out.data()});
  device_elementwise<<<blocks_of(kElements), 256>>>(
      kElements, Identities{}, tessera::In<float>{device_a.data()},
      tessera::In<float>{device_b.data()}, tessera::Out<float>{device_out.data()});
  compare("identities", wild, out, device_out);
}

__global__ void device_cells(tessera::NormKind kind, std::uint64_t cells, const float* x,
                             double* out) {
  const std::uint64_t i = thread_index();
  if (i >= cells) return;
  out[i] = tessera::detail::with_one_nan(
      tessera::detail::whole_cell<tessera::detail::DoubleLanes<1>>(kind, x + i * tessera::kCell));
}

__global__ void device_scalars(std::uint64_t n, const float* x, float* out) {
  const std::uint64_t i = thread_index();
  if (i >= n) return;
  out[3 * i] = tessera::to_float(tessera::to_bf16(x[i]));
  out[3 * i + 1] = tessera::random_normal(5, 1, i);
  out[3 * i + 2] = tessera::random_uniform(5, 2, i);
}

void compare_scalars(bool wild) {
  const Floats x = make_values(22, wild);
  const OnDevice<float> device_x(x);
  const std::uint64_t cells = kElements / tessera::kCell;
  for (const auto kind : {tessera::NormKind::l2, tessera::NormKind::l1, tessera::NormKind::inf}) {
    std::vector<double> sums(cells);
    const OnDevice<double> device_sums(sums);
    for (std::uint64_t i = 0; i != cells; ++i) {
      sums[i] = tessera::cell_value(kind, &x[i * tessera::kCell], tessera::kCell);
    }
    device_cells<<<blocks_of(cells), 256>>>(kind, cells, device_x.data(), device_sums.data());
    compare("cells", wild, sums, device_sums);
  }
  std::vector<float> scalars(3 * kElements);
  const OnDevice<float> device_out(scalars);
  for (std::uint64_t i = 0; i != kElements; ++i) {
    scalars[3 * i] = tessera::to_float(tessera::to_bf16(x[i]));
    scalars[3 * i + 1] = tessera::random_normal(5, 1, i);
    scalars[3 * i + 2] = tessera::random_uniform(5, 2, i);
  }
  device_scalars<<<blocks_of(kElements), 256>>>(kElements, device_x.data(), device_out.data());
  compare("bf16, random", wild, scalars, device_out);
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU: nothing was compared\n");
    return std::getenv("TESSERA_GPU_REQUIRED") != nullptr ? 1 : 77;
  }
  for (const bool wild : {false, true}) {
    compare_optimizer("AdamW", tessera::AdamW{.weight_decay = 0.1f}, wild);
    compare_optimizer("Lion", tessera::Lion{.weight_decay = 0.1f}, wild);
    compare_optimizer("Sgd", tessera::Sgd{.momentum = 0.9f, .weight_decay = 0.1f}, wild);
    compare_optimizer("Sgd, nesterov", tessera::Sgd{.momentum = 0.9f, .nesterov = true}, wild);
    compare_elementwise(wild);
    compare_scalars(wild);
  }
  std::printf("host %016" PRIx64 "\n%d differences\n", workload_digest(), failures);
  return failures == 0 ? 0 : 1;
}
