// Memory for a passing copy between the caller and all ranks, outside the plan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/backend/backend.hpp"

namespace tessera::engine {

/// What goes through staging at once: large tensors pass in parts.
inline constexpr std::uint64_t kStagingBytes = std::uint64_t{64} << 20;

template <Runtime B>
class Staging {
 public:
  Staging(B& backend, std::uint64_t bytes)
      : backend_(backend), memory_(static_cast<std::byte*>(backend.allocate_staging(bytes))) {}
  ~Staging() { backend_.release_staging(memory_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* data() const { return memory_; }

 private:
  B& backend_;
  std::byte* memory_;
};

}  // namespace tessera::engine
