#pragma once
// Counts the tensor memory that is asked of the system, from outside the library: the linker sends
// every call of posix_memalign through the counter (-Wl,--wrap=posix_memalign). On CUDA those of
// cudaMalloc and cudaFree, where a count is of what is held: a passing copy may hold a buffer.

#include <cstdint>

namespace allocation_counter {

struct Count {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;

  friend constexpr bool operator==(const Count&, const Count&) = default;
  friend constexpr Count operator-(const Count& a, const Count& b) {
    return {a.calls - b.calls, a.bytes - b.bytes};
  }
};

/// What the calling thread has asked for so far. A rank is a thread, so the difference of two of
/// these is what one rank allocated in between.
Count of_this_thread();

/// What all threads together have asked for so far: side streams are seen as well.
Count of_process();

}  // namespace allocation_counter
