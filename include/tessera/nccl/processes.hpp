// Groups of processes: how NCCL's id of a group comes from rank 0 to the others.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "tessera/cuda/error.hpp"
#include "tessera/error.hpp"
#include "tessera/nccl/environment.hpp"
#include "tessera/nccl/open.hpp"
#include "tessera/nccl/tcp_bootstrap.hpp"

namespace tessera::detail {

inline std::shared_ptr<NcclState> open_one_rank(const NcclOptions& options) {
  const ncclUniqueId id = options.force_at_one_rank ? make_unique_id() : ncclUniqueId{};
  return open_group(id, 0, 1, options);
}

/// See Nccl::from_broadcast.
template <class Broadcast>
std::shared_ptr<NcclState> open_by_broadcast(int rank, int size, Broadcast& broadcast,
                                             const NcclOptions& options) {
  check_options(options);
  check_place(rank, size);
  if (size == 1) return open_one_rank(options);
  struct {
    ncclUniqueId id{};
    std::uint64_t made = 0;  // 0: rank 0 failed, and the others are not to wait for it
  } message;
  std::string problem = "rank 0 could not make the group's id";
  if (rank == 0) {
    try {
      message.id = make_unique_id();
      message.made = 1;
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  broadcast(static_cast<void*>(&message), sizeof message);
  if (message.made != 1) throw CommunicatorError(rank, "", "making the group", problem);
  return open_group(message.id, rank, size, options);
}

/// See Nccl::from_environment. The id travels over a connection of its own rather than by
/// NCCL_COMM_ID, which makes one group in a process and leaves the waiting to NCCL; where that is
/// set, NCCL puts the address it names into the id, and it works once.
inline std::shared_ptr<NcclState> open_from_environment(NcclOptions options) {
  static std::atomic<std::uint64_t> meetings{0};
  check_options(options);
  const LaunchEnvironment here = read_launch_environment();
  const int port = here.size == 1 ? 0 : bootstrap_port(here, options.bootstrap_port);
  if (options.device < 0 && (here.size > 1 || std::getenv("LOCAL_RANK") != nullptr)) {
    int devices = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaErrorNoDevice) {
      check_cuda(error, "counting CUDA devices");
    }
    check_local_device(here.local_rank, devices);
    options.device = here.local_rank;
  }
  if (here.size == 1) return open_one_rank(options);
  const std::uint64_t meeting = meetings++;
  if (meeting > 0 && std::getenv("NCCL_COMM_ID") != nullptr) {
    fail(
        "tessera: NCCL_COMM_ID is set, with which NCCL makes one group, and this process has made "
        "one: unset it, or split the group that there is");
  }
  const BootstrapPlace place{here.address,       port,           here.rank, here.size,
                             here.job + meeting, options.timeout};
  const auto broadcast = [&place](void* data, std::size_t bytes) {
    TcpBootstrap::share(place, {static_cast<std::byte*>(data), bytes});
  };
  return open_by_broadcast(here.rank, here.size, broadcast, options);
}

}  // namespace tessera::detail
