#pragma once
// Vectors on the device, for tests.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <tessera/cuda.hpp>

namespace cuda_test {

namespace ts = tessera;

/// A vector's copy on the current device, for as long as it lives; `shift` elements past an
/// allocation's begin, so that any alignment can be had.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host, std::size_t shift = 0)
      : count_(host.size()), shift_(shift) {
    ts::detail::check_cuda(
        cudaMalloc(reinterpret_cast<void**>(&memory_), (count_ + shift + 1) * sizeof(T)),
        "a test's memory");
    ts::detail::check_cuda(
        cudaMemcpy(data(), host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
        "a test's copy");
    // A small copy from pageable memory returns before it has arrived, and streams of the runtime
    // do not wait for the default stream.
    ts::detail::check_cuda(cudaDeviceSynchronize(), "a test's copy");
  }
  ~OnDevice() { (void)cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return memory_ + shift_; }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    ts::detail::check_cuda(cudaDeviceSynchronize(), "a test's kernels");
    ts::detail::check_cuda(
        cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost),
        "a test's copy");
    return values;
  }

 private:
  T* memory_ = nullptr;
  std::size_t count_;
  std::size_t shift_;
};

/// Floats of all magnitudes, by a counter; now and then one that is not finite.
inline std::vector<float> values(std::uint64_t seed, std::size_t count, bool wild = false) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t z = (seed * 0x9e3779b97f4a7c15u) ^ (i + 1) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
    z ^= z >> 29;
    const auto fraction = static_cast<float>(static_cast<std::int32_t>(z >> 32)) * 0x1p-31f;
    const int exponent = static_cast<int>(z % 20) - 10;
    result[i] = __builtin_ldexpf(fraction, exponent);
    if (wild && z % 977 == 0) result[i] = __builtin_nanf("");
    if (wild && z % 977 == 1) result[i] = -__builtin_inff();
    if (wild && z % 53 == 2) result[i] = __builtin_ldexpf(fraction, -140);
  }
  return result;
}
inline std::vector<ts::bf16> rounded(const std::vector<float>& from) {
  std::vector<ts::bf16> result;
  for (float value : from) result.push_back(ts::to_bf16(value));
  return result;
}

template <class T>
std::size_t different_bits(const std::vector<T>& a, const std::vector<T>& b) {
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const auto* x = reinterpret_cast<const unsigned char*>(&a[i]);
    const auto* y = reinterpret_cast<const unsigned char*>(&b[i]);
    bool same = true;
    for (std::size_t k = 0; k < sizeof(T); ++k) same = same && x[k] == y[k];
    bool both_nan = false;
    if constexpr (std::is_floating_point_v<T>) both_nan = a[i] != a[i] && b[i] != b[i];
    count += same || both_nan ? 0 : 1;
  }
  return count;
}

}  // namespace cuda_test
