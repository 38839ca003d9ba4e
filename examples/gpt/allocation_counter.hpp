// What the calling thread has asked posix_memalign for: tensor memory, counted outside the library.
#pragma once

#include <cstdint>

namespace gpt {

/// Bytes that this thread has obtained from posix_memalign since it started. The library gives its
/// memory back only when a Shard ends, so before that this is its peak.
std::uint64_t allocated_bytes();
/// How many calls that took.
std::uint64_t allocation_calls();

}  // namespace gpt
