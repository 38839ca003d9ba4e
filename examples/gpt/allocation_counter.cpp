// Linked with --wrap=posix_memalign: the calls of this program, not those of shared libraries.
#include "allocation_counter.hpp"

#include <cstddef>

namespace {
thread_local std::uint64_t bytes = 0;
thread_local std::uint64_t calls = 0;
}  // namespace

extern "C" int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t size);

extern "C" int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  const int result = __real_posix_memalign(memory, alignment, size);
  if (result == 0) {
    bytes += size;
    ++calls;
  }
  return result;
}

namespace gpt {
std::uint64_t allocated_bytes() { return bytes; }
std::uint64_t allocation_calls() { return calls; }
}  // namespace gpt
