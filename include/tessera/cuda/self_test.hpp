// A look at whether this build computes the same bits on the device as on the host: flags of either
// compiler, or a new device, could change that, and then strategies and backends would differ.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <vector>

#include "tessera/cuda/elementwise.hpp"
#include "tessera/cuda/error.hpp"
#include "tessera/cuda/for_each.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/elementwise.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera::detail {

/// Contraction, reassociation, estimates and flushed denormals would each show in some element.
struct SelfTestFloats {
  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  TESSERA_HD void operator()(R& rounded, R& out, const R& a, const R& b) const {
    out = (a * b + a) - sqrt(abs(b)) / (a + R::splat(9.0f)) * (a * R::splat(0.1f));
    rounded = out;
  }
};
struct SelfTestDoubles {
  const float* in;
  double* out;
  TESSERA_HD void operator()(std::uint64_t i) const {
    const StrictRounding strict;
    const StrictDouble x{static_cast<double>(in[i])};
    out[i] = pin((sqrt(x * x + StrictDouble{0.1}) / (x * x + StrictDouble{0.3}) - x * x).x);
  }
};

/// Throws Error if they differ. Once a device and process; takes about a millisecond.
inline void check_cuda_bits(int device, cudaStream_t stream) {
  static std::mutex mutex;
  static std::set<int> checked;
  const std::lock_guard lock(mutex);
  if (checked.count(device) > 0) return;
  constexpr std::size_t n = 512;
  std::vector<float> a(n), b(n), sums(n);
  std::vector<bf16> halves(n);
  std::vector<double> doubles(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::uint32_t>(i * 0x9E3779B9u + 0x1234567u);
    // a between 1/8 and 8, and every eighth a denormal; b between 1 and 2, and every fourth small:
    // products and sums of a size, which contraction rounds otherwise, and denormal results.
    const std::uint32_t exponent = i % 8 == 0 ? 0 : 124 + static_cast<std::uint32_t>(i % 6);
    a[i] = __builtin_bit_cast(float, (bits & 0x807fffffu) | exponent << 23);
    const std::uint32_t other = bits * 0x85EBCA6Bu;
    b[i] = __builtin_bit_cast(float, (other & 0x007fffffu) | (i % 4 == 1 ? 3u : 127u) << 23);
  }
  elementwise(n, SelfTestFloats{}, Out<bf16>{halves.data()}, Out<float>{sums.data()},
              In<float>{a.data()}, In<float>{b.data()});
  for (std::size_t i = 0; i < n; ++i) SelfTestDoubles{a.data(), doubles.data()}(i);

  struct Memory {
    float a[n], b[n], sums[n];
    double doubles[n];
    bf16 halves[n];
  };
  std::vector<Memory> host(1);
  std::memcpy(host[0].a, a.data(), sizeof host[0].a);
  std::memcpy(host[0].b, b.data(), sizeof host[0].b);
  Memory* memory = nullptr;
  check_cuda(cudaMallocAsync(reinterpret_cast<void**>(&memory), sizeof(Memory), stream),
             "the start-up test's memory");
  check_cuda(cudaMemcpyAsync(memory, host.data(), sizeof(Memory), cudaMemcpyDefault, stream),
             "the start-up test");
  launch_elementwise(stream, n, SelfTestFloats{}, Out<bf16>{memory->halves},
                     Out<float>{memory->sums}, In<float>{memory->a}, In<float>{memory->b});
  launch_for_each(stream, n, SelfTestDoubles{memory->a, memory->doubles});
  check_cuda(cudaMemcpyAsync(host.data(), memory, sizeof(Memory), cudaMemcpyDefault, stream),
             "the start-up test");
  check_cuda(cudaFreeAsync(memory, stream), "the start-up test");
  check_cuda(cudaStreamSynchronize(stream), "the start-up test");
  if (std::memcmp(host[0].sums, sums.data(), sizeof host[0].sums) != 0 ||
      std::memcmp(host[0].doubles, doubles.data(), sizeof host[0].doubles) != 0 ||
      std::memcmp(host[0].halves, halves.data(), sizeof host[0].halves) != 0) {
    fail(
        "tessera: CUDA: device ", device,
        " does not compute the bits that the host does, so that ranks and strategies would differ: "
        "look at the compiler flags of this program (docs/design.md, section 4)");
  }
  checked.insert(device);
}

}  // namespace tessera::detail
