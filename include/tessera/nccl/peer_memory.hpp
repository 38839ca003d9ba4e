// Memory of each rank that the others can copy to: between processes of one host by CUDA's
// inter-process handles, between threads as it is.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/cuda/error.hpp"
#include "tessera/cuda/stream.hpp"
#include "tessera/cuda/stream_flags.hpp"

namespace tessera::detail {

/// What a rank tells the others of itself and of an allocation, and whether it could make it.
struct PeerOffer {
  std::uint64_t host = 0;     ///< tells hosts apart, and containers that share one
  std::uint64_t process = 0;  ///< tells processes apart
  std::uint64_t address = 0;  ///< in that process
  std::uint64_t bytes = 0;
  cudaIpcMemHandle_t handle{};
  int device = 0;
  int made = 0;
};

inline std::uint64_t this_process() {
  static const std::uint64_t token = [] {
    std::random_device source;
    return (static_cast<std::uint64_t>(source()) << 32) ^ source();
  }();
  return token;
}

inline std::uint64_t this_host() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return hash;
}

/// An allocation of this rank that all ranks of the group have opened, and theirs. Ranges lie at
/// the same offsets in all. At its end there are flags, which the peers raise: for each channel of
/// the group, each phase of a collective and each rank one.
class PeerRange {
 public:
  enum class Phase : std::uint8_t {
    ready,  ///< the peer may write here
    done,   ///< the peer has written
  };
  static constexpr int kChannels = 512;

  static std::uint64_t flag_bytes(int size) {
    return std::uint64_t{kFlagStride} * 2 * kChannels * static_cast<std::uint64_t>(size);
  }

  PeerRange(std::byte* base, std::uint64_t bytes, int rank, int size)
      : base_(base),
        bytes_(bytes),
        rank_(rank),
        theirs_(static_cast<std::size_t>(size)),
        opened_(static_cast<std::size_t>(size)) {
    theirs_[static_cast<std::size_t>(rank)] = base;
  }
  PeerRange(const PeerRange&) = delete;
  PeerRange& operator=(const PeerRange&) = delete;
  ~PeerRange() { close(); }

  /// Opens a peer's. False where that is not possible.
  bool open(int peer, const PeerOffer& offer, int device) {
    const auto place = static_cast<std::size_t>(peer);
    if (offer.process == this_process()) {
      if (!reach(device, offer.device)) return false;
      theirs_[place] = reinterpret_cast<std::byte*>(offer.address);
      return true;
    }
    void* memory = nullptr;
    const cudaError_t error =
        cudaIpcOpenMemHandle(&memory, offer.handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    theirs_[place] = static_cast<std::byte*>(memory);
    opened_[place] = true;
    return true;
  }
  void close() {
    for (std::size_t r = 0; r < opened_.size(); ++r) {
      if (opened_[r]) (void)cudaIpcCloseMemHandle(theirs_[r]);
      opened_[r] = false;
    }
  }

  std::byte* base() const { return base_; }
  bool holds(const void* data, std::uint64_t bytes) const {
    const auto* at = static_cast<const std::byte*>(data);
    return at >= base_ && at <= base_ + bytes_ &&
           bytes <= static_cast<std::uint64_t>(base_ + bytes_ - at);
  }
  /// The place of a peer's that corresponds to one of this rank's.
  std::byte* at(int peer, const void* own) const {
    return theirs_[static_cast<std::size_t>(peer)] + (static_cast<const std::byte*>(own) - base_);
  }
  /// In `owner`'s memory, raised by `from`.
  std::byte* flag(int owner, int channel, Phase phase, int from) const {
    const std::uint64_t index =
        (static_cast<std::uint64_t>(channel) * 2 + static_cast<std::uint64_t>(phase)) *
            theirs_.size() +
        static_cast<std::uint64_t>(from);
    return theirs_[static_cast<std::size_t>(owner)] + bytes_ + index * kFlagStride;
  }
  /// All flags of this rank.
  std::byte* flags() const { return base_ + bytes_; }
  std::uint64_t flag_bytes() const { return flag_bytes(static_cast<int>(theirs_.size())); }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(theirs_.size()); }

 private:
  static constexpr std::uint32_t kFlagStride = 16;

  static bool reach(int from, int to) {
    if (from == to) return true;
    int possible = 0;
    if (cudaDeviceCanAccessPeer(&possible, from, to) != cudaSuccess || possible == 0) {
      (void)cudaGetLastError();
      return false;
    }
    const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
    (void)cudaGetLastError();
    return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
  }

  std::byte* base_;
  std::uint64_t bytes_;  ///< without the flags
  int rank_;
  std::vector<std::byte*> theirs_;
  std::vector<bool> opened_;
};

/// The ranges of a group, shared by its channels.
class PeerMemory {
 public:
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// The number of a new channel: all ranks make theirs in the same order.
  int add_channel() { return channels_++; }

  void add(std::unique_ptr<PeerRange> range, int device) {
    const std::lock_guard lock(mutex_);
    ranges_.push_back(std::move(range));
    device_ = device;
  }
  /// Takes a range out; null where it is none.
  std::unique_ptr<PeerRange> remove(const void* base) {
    const std::lock_guard lock(mutex_);
    for (auto& range : ranges_) {
      if (range->base() != base) continue;
      std::unique_ptr<PeerRange> found = std::move(range);
      ranges_.erase(ranges_.begin() + (&range - ranges_.data()));
      return found;
    }
    return nullptr;
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return ranges_.empty();
  }
  /// The range that holds the memory, or null.
  const PeerRange* find(const void* data, std::uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    for (const auto& range : ranges_) {
      if (range->holds(data, bytes)) return range.get();
    }
    return nullptr;
  }
  const StreamFlags& flags() const { return flags_; }

  /// A stream that may come to wait for a peer.
  void note(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
      streams_.push_back(stream);
    }
  }
  /// Before the stream ends.
  void forget(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    std::erase(streams_, stream);
  }
  void forget_streams() {
    const std::lock_guard lock(mutex_);
    streams_.clear();
  }

  /// After an abort: raises every flag of this rank, again and again, until no stream waits for a
  /// peer any more, which takes no longer than `patience`. From any thread.
  void release_waits(std::chrono::milliseconds patience) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (ranges_.empty() || streams_.empty()) return;
      const CudaDeviceScope scope(device_);
      cudaStream_t side = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "making a stream");
      const auto deadline = std::chrono::steady_clock::now() + patience;
      bool waiting = true;
      while (waiting && std::chrono::steady_clock::now() < deadline) {
        for (const auto& range : ranges_) {
          (void)cudaMemsetAsync(range->flags(), 0xFF, range->flag_bytes(), side);
        }
        (void)cudaStreamSynchronize(side);
        waiting = false;
        for (cudaStream_t stream : streams_) {
          waiting = waiting || cudaStreamQuery(stream) == cudaErrorNotReady;
        }
        (void)cudaGetLastError();
      }
      (void)cudaStreamDestroy(side);
    } catch (...) {  // the device is lost, and nothing waits there
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<PeerRange>> ranges_;
  std::vector<cudaStream_t> streams_;
  StreamFlags flags_;
  int channels_ = 0;
  int device_ = 0;
};

}  // namespace tessera::detail
