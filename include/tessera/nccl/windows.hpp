// Memory that NCCL may read and write on the other ranks' devices directly.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tessera/error.hpp"
#include "tessera/nccl/state.hpp"

namespace tessera::detail {

/// See Nccl::register_memory.
inline bool register_window(NcclState& state, void* base, std::uint64_t bytes) {
  const auto throw_problem = [&](std::string_view problem) {
    throw CommunicatorError(state.rank, "", "registering memory", problem);
  };
  if (state.family->aborted()) throw_problem(state.family->reason());
  if (!state.options.symmetric_windows) {
    state.note = "NcclOptions::symmetric_windows is off";
    return false;
  }
  if (!state.uses_nccl()) {
    state.note = "one rank needs none";
    return false;
  }
  if (state.has_reduced) {
    fail(
        "tessera: memory cannot be registered on a channel that carries reductions, where it "
        "makes NCCL choose slower kernels: register it on a channel of its own");
  }
  if (base == nullptr || bytes == 0 ||
      reinterpret_cast<std::uintptr_t>(base) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    fail("tessera: a range of ", bytes,
         " bytes cannot be registered: it must not be empty, and "
         "its address must be a multiple of ",
         NCCL_WIN_REQUIRED_ALIGNMENT, ", as that of memory from ncclMemAlloc is");
  }
  NcclState::Lock lock(state.mutex);
  if (!state.comm) throw_problem(state.family->reason());
  // Left as it is where windows are not supported, with success for an answer.
  ncclWindow_t window = nullptr;
  const ncclResult_t result =
      ncclCommWindowRegister(state.comm, base, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
  state.finish(lock, result, "ncclCommWindowRegister", [&](std::string_view problem) {
    throw_problem(concat(problem,
                         "; the memory must come from ncclMemAlloc, and every rank must "
                         "register as many bytes, in the same order"));
  });
  if (window == nullptr) {
    state.note =
        "NCCL made no window, which is what it does where it has no symmetric memory: "
        "ranks on several hosts, devices that are not all peers, or NCCL_CUMEM_ENABLE=0 "
        "or NCCL_WIN_ENABLE=0";
    return false;
  }
  state.windows.push_back(window);
  return true;
}

/// See Nccl::allocate.
inline void* allocate_window(NcclState& state, std::uint64_t bytes) {
  if (!state.options.symmetric_windows || !state.uses_nccl() || bytes == 0) {
    state.note = !state.options.symmetric_windows ? "NcclOptions::symmetric_windows is off"
                                                  : "one rank needs none";
    return nullptr;
  }
  void* memory = nullptr;
  const ncclResult_t result = ncclMemAlloc(&memory, bytes);
  if (result != ncclSuccess) {
    // Said to the others by their time-out; here the runtime's own allocation says what there is.
    state.note = concat("ncclMemAlloc gave no memory: ", ncclGetErrorString(result));
    (void)cudaGetLastError();
    return nullptr;
  }
  bool registered = false;
  try {
    registered = register_window(state, memory, bytes);
  } catch (...) {
    (void)ncclMemFree(memory);
    throw;
  }
  if (registered) return memory;
  (void)ncclMemFree(memory);
  return nullptr;
}

/// See Nccl::release.
inline void release_window(NcclState& state, void* memory) {
  {
    const NcclState::Lock lock(state.mutex);
    for (ncclWindow_t window : state.windows) {
      if (state.comm) (void)ncclCommWindowDeregister(state.comm, window);
    }
    state.windows.clear();
  }
  (void)ncclMemFree(memory);
}

/// How NCCL's own all-gathers travel.
inline std::string describe_nccl(const NcclState& state) {
  const bool asked = state.options.cta_policy == NCCL_CTA_POLICY_ZERO;
  const std::string why = state.note.empty() ? "no memory was registered" : state.note;
  std::string text;
  if (!state.windows.empty() && asked) {
    text =
        concat("all-gathers by copy engines are asked for (CTA policy ZERO, ", state.windows.size(),
               " symmetric window(s)); NCCL falls back to kernels "
               "without a word, so that a trace has to show which ran.");
  } else if (asked) {
    text = concat(
        "all-gathers by kernels, although CTA policy ZERO was asked for: it needs "
        "symmetric windows, and ",
        why, ".");
  } else if (!state.windows.empty()) {
    text = concat("all-gathers by kernels, which may use ", state.windows.size(),
                  " symmetric window(s).");
  } else {
    text = concat("all-gathers by kernels, without symmetric windows: ", why, ".");
  }
  text += " Gradients by sends and receives, and a sum in rank order.";
  const char* policy = std::getenv("NCCL_CTA_POLICY");
  if (policy) text += concat(" NCCL_CTA_POLICY=", policy, " overrides the options.");
  return text;
}

}  // namespace tessera::detail
