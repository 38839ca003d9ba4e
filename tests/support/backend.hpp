#pragma once
// The backend that the tests of a unit run on: Host, or Cuda where TESSERA_TEST_CUDA is defined.
// The kernels of the latter are in support/cuda_kernels.cu.

#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#if defined(TESSERA_TEST_CUDA)
#include <tessera/cuda.hpp>
#else
#include <tessera/tessera.hpp>
#endif

namespace under_test {

#if defined(TESSERA_TEST_CUDA)

inline constexpr bool kOnDevice = true;
using Backend = tessera::Cuda;
using Ranks = tessera::CudaInProcess;

template <class Body>
void run_ranks(int size, Body&& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  tessera::run_cuda_ranks(size, std::forward<Body>(body), timeout);
}

/// After what the compute stream holds.
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  tessera::detail::check_cuda(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread), "a test's copy");
  tessera::detail::check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "a test's copy");
}

#else

inline constexpr bool kOnDevice = false;
using Backend = tessera::Host;
using Ranks = tessera::InProcess;

template <class Body>
void run_ranks(int size, Body&& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  tessera::run_ranks(size, std::forward<Body>(body), timeout);
}

inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif

using RuntimeOptions = Backend::Runtime::Options;

/// What lies in the backend's memory.
template <class T>
std::vector<T> read(const T* from, std::size_t count) {
  std::vector<T> values(count);
  copy(values.data(), from, count * sizeof(T));
  return values;
}
template <class T>
void write(T* to, const std::vector<T>& values) {
  copy(to, values.data(), values.size() * sizeof(T));
}

}  // namespace under_test
