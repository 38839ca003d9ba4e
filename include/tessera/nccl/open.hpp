// How communicators come to be: from an id, from the user's, and from one another.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <string>
#include <string_view>

#include "tessera/cuda/connections.hpp"
#include "tessera/cuda/error.hpp"
#include "tessera/error.hpp"
#include "tessera/nccl/state.hpp"

namespace tessera::detail {

/// The library that runs may be older than the header that was compiled.
inline void check_nccl_version() {
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  if (result != ncclSuccess) {
    fail("tessera: NCCL does not tell its version: ", ncclGetErrorString(result));
  }
  if (version < NCCL_VERSION(2, 28, 0)) {
    fail("tessera: the NCCL library that was loaded is version ", version / 10000, ".",
         version / 100 % 100, ".", version % 100,
         ", but 2.28 or later is needed: look at LD_LIBRARY_PATH");
  }
}

inline void check_place(int rank, int size) {
  if (size < 1) fail("tessera: a group must have at least 1 rank, not ", size);
  if (rank < 0 || rank >= size) {
    fail("tessera: rank ", rank, " is no place in a group of ", size, ": ranks count from 0 to ",
         size - 1);
  }
}

inline ncclUniqueId make_unique_id() {
  ncclUniqueId id{};
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) {
    fail("tessera: NCCL could not make a group's id: ", ncclGetErrorString(result), " (",
         ncclGetLastError(nullptr), ")");
  }
  return id;
}

/// Makes the chosen device the thread's current one; which it is.
inline int use_device(int device) {
  prepare_cuda_connections();
  if (device >= 0) check_cuda(cudaSetDevice(device), "choosing the CUDA device of this rank");
  check_cuda(cudaGetDevice(&device), "asking for the current CUDA device");
  return device;
}

/// A rank by itself, without NCCL.
inline std::shared_ptr<NcclState> open_alone(const NcclOptions& options) {
  auto state = std::make_shared<NcclState>();
  state->options = kept_options(options);
  state->family->add(state);
  return state;
}

/// A channel's place in the memory that the group's ranks open to each other; a group's own where
/// there is no parent. Channels have numbers, and flags, as far as they go: those beyond do
/// without.
inline void open_peers(NcclState& state, const NcclState* parent) {
  state.peers = parent ? parent->peers : std::make_shared<PeerMemory>();
  if (!state.peers) return;
  state.channel = state.peers->add_channel();
}

/// Collective over the ranks that have the id.
inline std::shared_ptr<NcclState> open_group(const ncclUniqueId& id, int rank, int size,
                                             const NcclOptions& options) {
  check_options(options);
  check_place(rank, size);
  if (size == 1 && !options.force_at_one_rank) {
    auto state = open_alone(options);
    if (options.device >= 0) state->device = use_device(options.device);
    return state;
  }
  check_nccl_version();
  auto state = std::make_shared<NcclState>();
  state->options = kept_options(options);
  state->rank = rank;
  state->size = size;
  state->device = use_device(options.device);
  state->family->add(state);
  ncclConfig_t config = make_config(options, false);
  NcclState::Lock lock(state->mutex);
  const ncclResult_t result = ncclCommInitRankConfig(&state->comm, size, id, rank, &config);
  state->finish(lock, result, "ncclCommInitRankConfig", [&](std::string_view problem) {
    throw CommunicatorError(rank, "", "making the group", problem);
  });
  state->ready = true;
  open_peers(*state, nullptr);
  return state;
}

/// The user's communicator, which stays the user's.
inline std::shared_ptr<NcclState> open_adopted(ncclComm_t comm, const NcclOptions& options) {
  check_options(options);
  check_nccl_version();
  if (!comm) fail("tessera: Nccl::adopt was given a null communicator");
  auto state = std::make_shared<NcclState>();
  state->options = kept_options(options);
  state->owned = false;
  state->comm = comm;
  NcclState::Lock lock(state->mutex);
  const auto throw_problem = [](std::string_view problem) {
    throw CommunicatorError(-1, "", "adopting a communicator", problem);
  };
  state->finish(lock, ncclSuccess, "what the communicator was last asked", throw_problem);
  ncclResult_t result = ncclCommUserRank(comm, &state->rank);
  if (result == ncclSuccess) result = ncclCommCount(comm, &state->size);
  if (result == ncclSuccess) result = ncclCommCuDevice(comm, &state->device);
  if (result != ncclSuccess) throw_problem(state->describe(result, "ncclCommUserRank"));
  lock.unlock();
  open_peers(*state, nullptr);
  state->family->add(state);
  return state;
}

/// A communicator of the ranks that give the same color, ordered by (key, rank); a channel's are
/// all of the parent's, in their order. Collective over `parent`.
inline std::shared_ptr<NcclState> open_child(const std::shared_ptr<NcclState>& parent, int color,
                                             int key, const char* what, bool is_channel) {
  const auto throw_problem = [&](std::string_view problem) {
    throw CommunicatorError(parent->rank, "", what, problem);
  };
  if (color < 0) fail("tessera: split was given the color ", color, ", but it must be 0 or more");
  if (parent->family->aborted()) throw_problem(parent->family->reason());
  auto child = std::make_shared<NcclState>();
  child->options = parent->options;
  child->family = parent->family;
  child->device = parent->device;
  if (parent->uses_nccl()) {
    ncclConfig_t config = make_config(parent->options, parent->options.blocking_channels);
    try {
      NcclState::Lock lock(parent->mutex);
      // Null where an abort came in between.
      if (!parent->comm) throw_problem(parent->family->reason());
      const ncclResult_t result = ncclCommSplit(parent->comm, color, key, &child->comm, &config);
      parent->finish(lock, result, "ncclCommSplit", throw_problem);
    } catch (...) {
      // NCCL may still be going to write the child's handle: better never freed than too early.
      if (parent->comm) new std::shared_ptr<NcclState>(child);
      throw;
    }
    NcclState::Lock lock(child->mutex);
    child->finish(lock, ncclSuccess, "ncclCommSplit", throw_problem);
    ncclResult_t result = ncclCommUserRank(child->comm, &child->rank);
    if (result == ncclSuccess) result = ncclCommCount(child->comm, &child->size);
    if (result != ncclSuccess) throw_problem(child->describe(result, "ncclCommUserRank"));
    child->ready = true;
    open_peers(*child, is_channel ? parent.get() : nullptr);
  }
  if (!parent->family->add(child)) throw_problem(parent->family->reason());
  return child;
}

}  // namespace tessera::detail
