#pragma once

#include <cstdint>

namespace tessera {

/// The codec that changes nothing: elements go over the wire as they are.
struct Raw {
  static constexpr const char* name = "raw";

  /// Bytes on the wire of n elements of `element_size` bytes.
  static constexpr std::uint64_t encoded_bytes(std::uint64_t n,
                                               std::uint64_t element_size) noexcept {
    return n * element_size;
  }
};

}  // namespace tessera
