// The hardware queues of a process's streams.
#pragma once

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tessera/error.hpp"

namespace tessera::detail {

/// Streams share hardware queues, of which there are eight by default: with 32, a rank's streams do
/// not wait behind each other. To be called before the process's CUDA context exists; says so when
/// the user has asked for one queue, which would serialise them.
inline void prepare_cuda_connections() {
  static std::once_flag once;
  std::call_once(once, [] { (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); });
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections != nullptr && std::strcmp(connections, "1") == 0) {
    fail(
        "tessera: CUDA_DEVICE_MAX_CONNECTIONS=1 makes streams wait for each other, so that "
        "gathers and reductions cannot run beside compute: unset it, or set it to 32");
  }
}

}  // namespace tessera::detail
