// Launching kernels: one place, so that every launch is checked.
#pragma once

#include <cstddef>
#include <type_traits>

#include "check.hpp"

namespace gpt::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kWarps = kThreads / kWarp;  // of a block of kThreads

constexpr unsigned blocks_for(std::size_t items, std::size_t a_block) {
  return static_cast<unsigned>((items + a_block - 1) / a_block);
}

/// Arguments become the kernel's own parameter types first: CUDA passes them by address.
template <class... Parameters>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::type_identity_t<Parameters>... arguments) {
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  require(cudaLaunchKernel(kernel, grid, block, addresses, 0, stream), "launching a kernel");
}

/// One thread an element.
template <class... Parameters>
void launch_each(cudaStream_t stream, std::size_t n, void (*kernel)(std::size_t, Parameters...),
                 std::type_identity_t<Parameters>... arguments) {
  launch(stream, kernel, dim3(blocks_for(n, kThreads)), dim3(kThreads), n, arguments...);
}

/// One block a row: for what is done to each of its elements alone.
template <class... Parameters>
void launch_row_blocks(cudaStream_t stream, std::size_t rows, void (*kernel)(Parameters...),
                       std::type_identity_t<Parameters>... arguments) {
  launch(stream, kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), arguments...);
}

/// One warp a row: for what takes sums over it.
template <class... Parameters>
void launch_rows(cudaStream_t stream, std::size_t rows, void (*kernel)(std::size_t, Parameters...),
                 std::type_identity_t<Parameters>... arguments) {
  launch(stream, kernel, dim3(blocks_for(rows, kWarps)), dim3(kThreads), rows, arguments...);
}

}  // namespace gpt::cuda
