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
  std::uint64_t host = 0;     ///< tells hosts apart
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

/// 0 where it cannot be told.
inline std::uint64_t this_host() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  if (text.empty()) return 0;
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
  /// What an allocation of `bytes` takes in all: flags, the word that tells of an abort, and whole
  /// blocks, which no other allocation shares.
  static std::uint64_t allocated_bytes(std::uint64_t bytes, int size) {
    constexpr std::uint64_t kBlock = std::uint64_t{2} << 20;
    return (bytes + flag_bytes(size) + kFlagStride + kBlock - 1) / kBlock * kBlock;
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
  /// In `owner`'s memory, not 0 when a rank that pushes there has aborted.
  std::byte* abort_word(int owner) const {
    return theirs_[static_cast<std::size_t>(owner)] + bytes_ + flag_bytes();
  }
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
  ~PeerMemory() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    if (releaser_.joinable()) releaser_.join();
    if (reader_ != nullptr) (void)cudaStreamDestroy(reader_);
  }

  /// The number of a new channel, negative where there are no flags for more: all ranks make theirs
  /// in the same order.
  int add_channel() {
    const std::lock_guard lock(mutex_);
    return channels_ < PeerRange::kChannels ? channels_++ : -1;
  }

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
  /// The range that holds the memory, or null.
  const PeerRange* find(const void* data, std::uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    for (const auto& range : ranges_) {
      if (range->holds(data, bytes)) return range.get();
    }
    return nullptr;
  }
  const StreamFlags& flags() const { return flags_; }

  /// Whether a peer has aborted: what it pushed since then may be anything. Waits for a small copy.
  bool peer_aborted() {
    const std::lock_guard lock(mutex_);
    if (ranges_.empty()) return false;
    if (reader_ == nullptr) {
      check_cuda(cudaStreamCreateWithFlags(&reader_, cudaStreamNonBlocking), "making a stream");
    }
    for (const auto& range : ranges_) {
      std::uint32_t word = 0;
      check_cuda(cudaMemcpyAsync(&word, range->abort_word(range->rank()), sizeof word,
                                 cudaMemcpyDeviceToHost, reader_),
                 "looking for an abort");
      check_cuda(cudaStreamSynchronize(reader_), "looking for an abort");
      if (word != 0) return true;
    }
    return false;
  }

  /// After an abort: a thread tells the peers, and then raises every flag of this rank, again and
  /// again, until the memory is given back. A wait takes a flag down, so that once would end one
  /// wait of each.
  void release_waits() noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (ranges_.empty() || releaser_.joinable()) return;
      releaser_ = std::thread([this] { release(); });
    } catch (...) {  // no thread can be had: the streams wait for their peers
    }
  }

 private:
  void release() noexcept {
    try {
      check_cuda(cudaSetDevice(device_), "choosing the device");
      cudaStream_t side = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "making a stream");
      tell_peers(side);
      while (raise_all(side)) std::this_thread::sleep_for(std::chrono::microseconds(200));
      (void)cudaStreamDestroy(side);
    } catch (...) {  // the device is lost, and nothing waits there
    }
  }
  // Before this rank's waits end, after which its copies no longer mean anything.
  void tell_peers(cudaStream_t side) {
    const std::lock_guard lock(mutex_);
    for (const auto& range : ranges_) {
      for (int peer = 0; peer < range->size(); ++peer) {
        if (peer == range->rank()) continue;
        (void)cudaMemsetAsync(range->abort_word(peer), 0xFF, sizeof(std::uint32_t), side);
      }
    }
    (void)cudaStreamSynchronize(side);
    (void)cudaGetLastError();
  }
  // False at the end. Ranges stay while the lock is held.
  bool raise_all(cudaStream_t side) {
    const std::lock_guard lock(mutex_);
    if (ending_ || ranges_.empty()) return false;
    if (cudaStreamQuery(side) == cudaErrorNotReady) {  // what was asked before is not done yet
      (void)cudaGetLastError();
      return true;
    }
    for (const auto& range : ranges_) {
      check_cuda(cudaMemsetAsync(range->flags(), 0xFF, range->flag_bytes(), side), "raising flags");
    }
    return true;
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<PeerRange>> ranges_;
  StreamFlags flags_;
  cudaStream_t reader_ = nullptr;
  std::thread releaser_;
  bool ending_ = false;
  int channels_ = 0;
  int device_ = 0;
};

}  // namespace tessera::detail
