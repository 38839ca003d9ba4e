// The fixed tree of exact/cell_sum.hpp on the device, in two passes: windows of cells by a block
// each, then the windows of each range.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/backend/ranges.hpp"
#include "tessera/cuda/launch.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/cell_sum.hpp"
#include "tessera/exact/cell_tree.hpp"
#include "tessera/exact/classify.hpp"
#include "tessera/exact/double_lanes.hpp"
#include "tessera/exact/lanes.hpp"

namespace tessera::detail {

/// Cells of a window: a power of two.
inline constexpr std::uint64_t kNormWindow = 256;

/// Folds `count` ranges, which lie in device memory and touch `windows` windows.
template <class Kind = NormKind>
TESSERA_CUDA_LAUNCHER void launch_norm(cudaStream_t stream, Kind kind, const NormRange* ranges,
                                       std::uint32_t count, std::uint64_t windows);

#if defined(__CUDACC__)

/// Cells of a window that are in shared memory at once: 32 KiB of them.
template <class T>
inline constexpr std::uint64_t kNormCells = kNormWindow / 2 * sizeof(float) / sizeof(T);

/// Cells in shared memory, as they are. The gap between two keeps the eight threads of each of four
/// neighbours, which read at the same offset, out of each other's banks. T is float or bf16.
template <class T>
struct StagedCells {
  T x[kNormCells<T>][kCell + 8];
};

/// Copies the cells [first, first + kNormCells<T>) of a range's tensor to shared memory, 16 bytes a
/// thread at a time and without waiting; what the range does not hold becomes zero.
template <class T>
__device__ void stage_cells(StagedCells<T>& to, const NormRange& range, std::uint64_t first) {
  constexpr std::uint64_t kPart = 16 / sizeof(T);
  constexpr std::uint64_t kParts = kCell / kPart;
  const T* const data = static_cast<const T*>(range.data);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (std::uint64_t v = threadIdx.x; v < kNormCells<T> * kParts; v += kCudaThreads) {
    const std::uint64_t cell = first + v / kParts;
    T* const staged = &to.x[v / kParts][v % kParts * kPart];
    // Wraps around below the range's first cell, and is then beyond its elements.
    const std::uint64_t offset = (cell - range.first_cell) * kCell + v % kParts * kPart;
    if (aligned && cell >= range.first_cell && offset + kPart <= range.elements) {
      const auto address = static_cast<unsigned>(__cvta_generic_to_shared(staged));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(data + offset)
                   : "memory");
      continue;
    }
    for (std::uint64_t k = 0; k < kPart; ++k) {
      const bool held = cell >= range.first_cell && offset + k < range.elements;
      staged[k] = held ? data[offset + k] : T{};
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

/// A cell's value by eight threads, each the partial sum of the elements of one residue mod 8, in
/// sum_cell's order; valid in the first of the eight. A square is exact in double, so that one
/// fused operation rounds as the product and the sum do.
template <NormKind kind, class T>
__device__ double cell_of_eight(const T* cell, unsigned residue) {
  if constexpr (kind == NormKind::inf) {
    std::uint32_t largest = 0;
#pragma unroll
    for (std::uint64_t i = 0; i < kCell; i += 8) {
      const std::uint32_t magnitude = bits_of(Lanes<1>::load(cell + i + residue).x) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
      const std::uint32_t other = __shfl_down_sync(0xffffffffu, largest, distance, 8);
      largest = other > largest ? other : largest;
    }
    const float value = __builtin_bit_cast(float, largest);
    return DoubleLanes<1>::load(&value).x;
  } else {
    double partial = 0;
#pragma unroll
    for (std::uint64_t i = 0; i < kCell; i += 8) {
      const float value = Lanes<1>::load(cell + i + residue).x;
      double wide = DoubleLanes<1>::load(&value).x;
      if constexpr (kind == NormKind::l2) {
        asm("fma.rn.f64 %0, %1, %1, %0;" : "+d"(partial) : "d"(wide));
      } else {
        wide = __builtin_bit_cast(double, bits_of(wide) & 0x7fffffffffffffffu);
        partial = (DoubleLanes<1>{partial} + DoubleLanes<1>{wide}).x;
      }
    }
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
      const double other = __shfl_down_sync(0xffffffffu, partial, distance, 8);
      partial = (DoubleLanes<1>{partial} + DoubleLanes<1>{other}).x;
    }
    return partial;
  }
}

/// The node of `level` whose cells begin at values[first], by one thread.
inline __device__ double folded(NormKind kind, const double* values, std::uint64_t first,
                                std::uint32_t level) {
  NodeStack stack(kind);
  for (std::uint64_t i = 0; i < (std::uint64_t{1} << level); ++i) {
    stack.push({{i, 0}, values[first + i]});
  }
  return stack.fold_all();
}

/// The values of the cells of a window, of which those that the range does not hold are zero.
template <NormKind kind, class T>
__device__ void window_values(double (&values)[kNormWindow], StagedCells<T>& cells,
                              const NormRange& range, std::uint64_t window) {
  const unsigned residue = threadIdx.x % 8;
  for (std::uint64_t staged = 0; staged < kNormWindow; staged += kNormCells<T>) {
    stage_cells(cells, range, window + staged);
    for (std::uint64_t at = threadIdx.x / 8; at < kNormCells<T>; at += kCudaThreads / 8) {
      const double value = cell_of_eight<kind>(cells.x[at], residue);
      if (residue == 0) values[staged + at] = value;
    }
    __syncthreads();
  }
}

/// The cells of one window that a range holds: whole windows to one partial, others to the nodes
/// that lie within them.
template <NormKind kind>
__global__ void __launch_bounds__(kCudaThreads)
    norm_windows_kernel(const NormRange* ranges, std::uint32_t count) {
  __shared__ double values[kNormWindow];
  __shared__ __align__(16) unsigned char cells[sizeof(StagedCells<float>)];
  const std::uint64_t block = ranges[0].first_window + blockIdx.x;
  std::uint32_t low = 0;
  for (std::uint32_t high = count; high - low > 1;) {
    const std::uint32_t middle = (low + high) / 2;
    (ranges[middle].first_window <= block ? low : high) = middle;
  }
  const NormRange range = ranges[low];
  const std::uint64_t index = block - range.first_window;
  const std::uint64_t first = range.first_cell;
  const std::uint64_t last = first + cells_of(range.elements);
  const std::uint64_t window = (first / kNormWindow + index) * kNormWindow;
  const std::uint64_t begin = window > first ? window : first;
  const std::uint64_t end = window + kNormWindow < last ? window + kNormWindow : last;
  if (range.dtype == DType::bf16) {
    window_values<kind>(values, reinterpret_cast<StagedCells<bf16>&>(cells), range, window);
  } else {
    window_values<kind>(values, reinterpret_cast<StagedCells<float>&>(cells), range, window);
  }
  if (end - begin == kNormWindow) {
    for (unsigned distance = 1; distance < kNormWindow; distance *= 2) {
      const unsigned i = threadIdx.x * 2 * distance;
      if (i < kNormWindow) values[i] = fold_pair(kind, values[i], values[i + distance]);
      __syncthreads();
    }
    if (threadIdx.x == 0) range.partials[index] = values[0];
    return;
  }
  // At either end of the range: a few nodes, a thread each.
  std::uint32_t node_index = 0;
  double* out = range.nodes;
  if (begin > first) out += node_count(first, begin);
  for_each_node(begin, end, [&](const TreeNode& node) {
    if (node_index == threadIdx.x) {
      out[node_index] = with_one_nan(folded(kind, values, node.first_cell - window, node.level));
    }
    ++node_index;
  });
}

/// The nodes of a range that are made of whole windows, by a block a range.
template <NormKind kind>
__global__ void __launch_bounds__(kCudaThreads)
    norm_nodes_kernel(const NormRange* ranges, std::uint32_t count) {
  const NormRange range = ranges[blockIdx.x];
  const std::uint64_t first = range.first_cell;
  const std::uint64_t last = first + cells_of(range.elements);
  double* node_value = range.nodes;
  for_each_node(first, last, [&](const TreeNode& node) {
    double* const out = node_value++;
    if (node.cells() < kNormWindow) return;
    double* partials = range.partials + (node.first_cell / kNormWindow - first / kNormWindow);
    const std::uint64_t windows = node.cells() / kNormWindow;
    for (std::uint64_t distance = 1; distance < windows; distance *= 2) {
      for (std::uint64_t i = threadIdx.x * 2 * distance; i < windows;
           i += kCudaThreads * 2 * distance) {
        partials[i] = fold_pair(kind, partials[i], partials[i + distance]);
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) *out = with_one_nan(partials[0]);
  });
}

template <NormKind kind>
void launch_norm_of(cudaStream_t stream, const NormRange* ranges, std::uint32_t count,
                    std::uint64_t windows) {
  launch_cuda("the norm's first pass", stream, windows, kCudaThreads, norm_windows_kernel<kind>,
              ranges, count);
  launch_cuda("the norm's second pass", stream, count, kCudaThreads, norm_nodes_kernel<kind>,
              ranges, count);
}

template <class Kind>
void launch_norm(cudaStream_t stream, Kind kind, const NormRange* ranges, std::uint32_t count,
                 std::uint64_t windows) {
  switch (kind) {
    case NormKind::l2: return launch_norm_of<NormKind::l2>(stream, ranges, count, windows);
    case NormKind::l1: return launch_norm_of<NormKind::l1>(stream, ranges, count, windows);
    case NormKind::inf: return launch_norm_of<NormKind::inf>(stream, ranges, count, windows);
  }
}

#endif

}  // namespace tessera::detail
