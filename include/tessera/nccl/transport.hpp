// Which way an NCCL group's bytes travel, and how that is said.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tessera/nccl/peer_copies.hpp"
#include "tessera/nccl/state.hpp"
#include "tessera/nccl/windows.hpp"

namespace tessera::detail {

/// Copies are taken unless they are slower than NCCL by more than this, since they leave the
/// multiprocessors to compute: kernels of collectives beside matrix products cost those more than
/// the collectives' own time.
inline constexpr double kCopiesMayTake = 1.25;
inline constexpr std::uint64_t kTimedBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kLeastTimedBytes = std::uint64_t{1} << 20;

/// Memory for the plan, as NcclOptions::transport asks; null where it may be any. Collective.
inline void* allocate_for_transport(NcclState& state, std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  const NcclTransport asked = state.options.transport;
  state.chosen.clear();
  state.copies = false;
  if (asked == NcclTransport::nccl || state.size == 1) return allocate_window(state, bytes);
  void* memory = allocate_peer_memory(state, bytes);
  if (memory == nullptr) {
    const std::string why = state.note;
    if (asked == NcclTransport::peer_copies) {
      fail("tessera: NcclTransport::peer_copies was asked for, but ", why);
    }
    memory = allocate_window(state, bytes);
    state.chosen = concat("no copies between the ranks: ", why, "; ");
    return memory;
  }
  state.copies = true;
  if (asked == NcclTransport::peer_copies) return memory;
  if (bytes < kLeastTimedBytes) {
    state.chosen = "chosen untimed, as there is little memory; ";
    return memory;
  }
  const std::uint64_t timed = std::min(bytes, kTimedBytes);
  GatherTimes times;
  try {
    times = time_gathers(state, *state.peers->find(memory, bytes), timed);
  } catch (...) {
    release_peer_memory(state, memory);
    throw;
  }
  char text[160];
  std::snprintf(text, sizeof text,
                "a gather of %.0f MiB took %.3f ms by copies and %.3f ms by NCCL's kernels; ",
                static_cast<double>(timed) / 0x1p20, times.copies_ms, times.nccl_ms);
  state.chosen = text;
  if (times.copies_ms <= kCopiesMayTake * times.nccl_ms) return memory;
  state.copies = false;
  release_peer_memory(state, memory);
  return allocate_window(state, bytes);
}

inline void release_for_transport(NcclState& state, void* memory) {
  if (state.peers && state.peers->find(memory, 0) != nullptr) {
    return release_peer_memory(state, memory);
  }
  release_window(state, memory);
}

/// See Nccl::transport_note.
inline std::string describe_transport(const NcclState& state) {
  if (!state.uses_nccl()) return "one rank: nothing is sent.";
  std::string text = state.chosen;
  if (state.copies) {
    text +=
        "all-gathers and gradients by copy engines, between memory that the ranks have opened; "
        "sums by kernels, in rank order; what lies elsewhere by NCCL.";
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    return text;
  }
  text += describe_nccl(state);
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace tessera::detail
