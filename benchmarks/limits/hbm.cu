// The bandwidth of device memory: what is read plus what is written.
#include "device.hpp"
#include "groups.hpp"
#include "random_fill.hpp"

namespace limits {
namespace {

constexpr std::size_t bytes = std::size_t{4} << 30;
constexpr int warm_up = 3, runs = 20;
constexpr unsigned threads = 256;
constexpr unsigned each = 4;  // float4 a thread

/// Copies blocks * threads * each elements.
__global__ void __launch_bounds__(threads)
    copy(float4* __restrict__ to, const float4* __restrict__ from) {
  const std::size_t first = std::size_t{blockIdx.x} * threads * each + threadIdx.x;
  float4 values[each];
#pragma unroll
  for (unsigned i = 0; i < each; ++i) values[i] = from[first + i * threads];
#pragma unroll
  for (unsigned i = 0; i < each; ++i) to[first + i * threads] = values[i];
}

template <class F>
double bandwidth(cudaStream_t stream, const F& f) {
  for (int i = 0; i < warm_up; ++i) f();
  return 2.0 * bytes / milliseconds_each(stream, runs, f) / 1e6;
}

}  // namespace

void measure_hbm(Report& report) {
  const DeviceMemory from(bytes), to(bytes);
  const Stream stream;
  random_fill<float>(from, 1, stream);
  const double driver = bandwidth(stream, [&] {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream));
  });
  report.add("hbm_copy_memcpy", driver, "GB/s", "cudaMemcpyAsync of 4 GiB, read + write");

  constexpr auto blocks = static_cast<unsigned>(bytes / sizeof(float4) / threads / each);
  static_assert(std::size_t{blocks} * threads * each * sizeof(float4) == bytes);
  const double kernel = bandwidth(stream, [&] {
    copy<<<blocks, threads, 0, stream>>>(static_cast<float4*>(to.data()),
                                         static_cast<const float4*>(from.data()));
    check(cudaGetLastError());
  });
  report.add("hbm_copy_kernel", kernel, "GB/s", "kernel, 4 float4 a thread, 4 GiB, read + write");
}

}  // namespace limits
