// Doubles of the reference as what kernels compute with on the device, and back.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda_check.hpp"
#include "reference/differences.hpp"
#include "tessera/exact/bf16.hpp"

namespace llama_test {

using llama_reference::Doubles;

template <class T>
T narrow(double value) {
  if constexpr (std::is_same_v<T, tessera::bf16>) {
    return tessera::to_bf16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}
template <class T>
double widen(T value) {
  if constexpr (std::is_same_v<T, tessera::bf16>) {
    return static_cast<double>(tessera::to_float(value));
  } else {
    return static_cast<double>(value);
  }
}

/// An array on the device.
template <class T>
class Device {
 public:
  explicit Device(const std::vector<T>& host) : count_(host.size()) {
    llama::require(cudaMalloc(&memory_, std::max<std::size_t>(1, count_) * sizeof(T)), "memory");
    llama::require(cudaMemcpy(memory_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
                   "a copy");
    llama::require(cudaDeviceSynchronize(), "a copy");
  }
  explicit Device(std::size_t count) : Device(std::vector<T>(count)) {}
  ~Device() { cudaFree(memory_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    llama::require(cudaDeviceSynchronize(), "the kernels before");
    llama::require(cudaMemcpy(values.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
                   "a copy");
    return values;
  }
  Doubles doubles() const {
    Doubles values;
    for (const T value : host()) values.push_back(widen(value));
    return values;
  }

 private:
  void* memory_ = nullptr;
  std::size_t count_;
};

/// Random values that T holds exactly, so that the reference sees what the kernel sees.
template <class T>
struct Input {
  Doubles values;
  Device<T> device;

  Input(std::size_t count, std::uint64_t stream, double deviation = 1.0)
      : values(made(count, stream, deviation)), device(narrowed(values)) {}

 private:
  static Doubles made(std::size_t count, std::uint64_t stream, double deviation) {
    Doubles all = llama_reference::random_values(count, stream, deviation);
    for (double& value : all) value = widen(narrow<T>(value));
    return all;
  }
  static std::vector<T> narrowed(const Doubles& from) {
    std::vector<T> all;
    for (const double value : from) all.push_back(narrow<T>(value));
    return all;
  }
};

/// The largest difference, relative to the largest expected value. NaN where there is one.
inline double error(const Doubles& got, const Doubles& expected) {
  double difference = got.size() == expected.size() ? 0.0 : INFINITY;
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size() && i < got.size(); ++i) {
    const double off = std::abs(got[i] - expected[i]);
    if (std::isnan(off)) return off;
    difference = std::max(difference, off);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest > 0.0 ? difference / largest : difference;
}

/// What one rounding to T may cost, relative to the largest value, with room for fp32 sums.
template <class T>
constexpr double tolerance() {
  return std::is_same_v<T, tessera::bf16> ? 0.005 : 3e-6;
}

}  // namespace llama_test
