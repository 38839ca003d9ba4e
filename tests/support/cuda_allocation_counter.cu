// The counter over cudaMalloc and cudaFree (-Wl,--wrap=cudaMalloc,--wrap=cudaFree): what is held.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>

#include "support/allocation_counter.hpp"

namespace {

thread_local allocation_counter::Count this_thread;
std::mutex mutex;
allocation_counter::Count process;
std::map<void*, std::size_t> held;

}  // namespace

namespace allocation_counter {

Count of_this_thread() { return this_thread; }

Count of_process() {
  const std::lock_guard lock(mutex);
  return process;
}

}  // namespace allocation_counter

// The names are the linker's.
extern "C" {

cudaError_t __real_cudaMalloc(void** memory, std::size_t bytes);
cudaError_t __real_cudaFree(void* memory);

cudaError_t __wrap_cudaMalloc(void** memory, std::size_t bytes) {
  const cudaError_t error = __real_cudaMalloc(memory, bytes);
  if (error != cudaSuccess || *memory == nullptr) return error;
  const std::lock_guard lock(mutex);
  held[*memory] = bytes;
  for (allocation_counter::Count* count : {&this_thread, &process}) {
    ++count->calls;
    count->bytes += bytes;
  }
  return error;
}

cudaError_t __wrap_cudaFree(void* memory) {
  {
    const std::lock_guard lock(mutex);
    const auto found = held.find(memory);
    if (found != held.end()) {
      for (allocation_counter::Count* count : {&this_thread, &process}) {
        --count->calls;
        count->bytes -= found->second;
      }
      held.erase(found);
    }
  }
  return __real_cudaFree(memory);
}

}  // extern "C"
