// Linked with --wrap=cudaMalloc,--wrap=cudaFree: the calls of this program, not those of shared
// libraries. The model takes its own memory from cudaMallocAsync, so what is left is the library's.
#include "../gpt/allocation_counter.hpp"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "check.hpp"

namespace {

/// Each rank is a thread that makes its allocations itself, and gives them back itself.
struct Allocations {
  std::unordered_map<void*, std::size_t> sizes;
  std::uint64_t live = 0;
  std::uint64_t most = 0;
  std::uint64_t calls = 0;
};
thread_local Allocations mine;

}  // namespace

extern "C" cudaError_t __real_cudaMalloc(void** memory, std::size_t size);
extern "C" cudaError_t __real_cudaFree(void* memory);

extern "C" cudaError_t __wrap_cudaMalloc(void** memory, std::size_t size) {
  const cudaError_t result = __real_cudaMalloc(memory, size);
  if (result == cudaSuccess) {
    mine.sizes[*memory] = size;
    mine.live += size;
    mine.most = std::max(mine.most, mine.live);
    ++mine.calls;
  }
  return result;
}

extern "C" cudaError_t __wrap_cudaFree(void* memory) {
  if (const auto found = mine.sizes.find(memory); found != mine.sizes.end()) {
    mine.live -= found->second;
    mine.sizes.erase(found);
  }
  return __real_cudaFree(memory);
}

namespace gpt {
std::uint64_t allocated_bytes() { return mine.most; }
std::uint64_t allocation_calls() { return mine.calls; }
}  // namespace gpt
