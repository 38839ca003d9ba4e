#include "support/allocation_counter.hpp"

#include <atomic>
#include <cstddef>

namespace {

thread_local allocation_counter::Count this_thread;
std::atomic<std::uint64_t> process_calls{0};
std::atomic<std::uint64_t> process_bytes{0};

}  // namespace

namespace allocation_counter {

Count of_this_thread() { return this_thread; }

Count of_process() { return {process_calls.load(), process_bytes.load()}; }

}  // namespace allocation_counter

// The names are the linker's.
extern "C" {

int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);

int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  ++this_thread.calls;
  this_thread.bytes += bytes;
  process_calls.fetch_add(1);
  process_bytes.fetch_add(bytes);
  return __real_posix_memalign(memory, alignment, bytes);
}

}  // extern "C"
