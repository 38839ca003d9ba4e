// A group of any size of which one rank is simulated: collectives cost alpha + bytes / bandwidth.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tessera/backend/sim.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/mesh.hpp"
#include "tessera/error.hpp"

namespace tessera {

/// The wires of a simulated group.
struct SimLinks {
  double latency_seconds = 20e-6;   ///< of a collective, whatever its size
  double bytes_per_second = 300e9;  ///< received by a rank
};

/// One rank of a simulated group; the others do as it does. Copies share their counts.
class SimCommunicator {
 public:
  SimCommunicator() : SimCommunicator(1) {}
  explicit SimCommunicator(int size, const SimLinks& links = {})
      : size_(size), links_(links), counts_(std::make_shared<CollectiveCounts>()) {
    if (size < 1) detail::fail("tessera: a group must have at least 1 rank, not ", size);
  }

  int rank() const { return 0; }
  int size() const { return size_; }
  SimCommunicator channel() const { return SimCommunicator(size_, links_); }

  void all_gather(SimRuntime::Stream& stream, CollectiveTag tag,
                  std::span<const GatherSegment> segments) {
    std::uint64_t bytes = 0;
    for (const GatherSegment& segment : segments) bytes += segment.bytes;
    spend(stream, tag.kind, bytes * static_cast<std::uint64_t>(size_ - 1));
  }
  static constexpr bool needs_reduce_scratch = false;
  void reduce_scatter(SimRuntime::Stream& stream, CollectiveTag tag,
                      std::span<const ReduceSegment> segments, std::byte* = nullptr) {
    std::uint64_t bytes = 0;
    for (const ReduceSegment& segment : segments)
      bytes += segment.elements * size_of(segment.dtype);
    spend(stream, tag.kind, bytes * static_cast<std::uint64_t>(size_ - 1));
  }
  void broadcast(SimRuntime::Stream& stream, CollectiveTag tag, void*, std::uint64_t bytes, int) {
    spend(stream, tag.kind, bytes);
  }

  CollectiveCounts counts() const { return *counts_; }
  void abort(const std::string&) {}
  void reset() {}

 private:
  void spend(SimRuntime::Stream& stream, CollectiveKind kind, std::uint64_t bytes) {
    if (size_ == 1) return;
    stream.now_ns +=
        (links_.latency_seconds + static_cast<double>(bytes) / links_.bytes_per_second) * 1e9;
    ++(*counts_)[kind].count;
    (*counts_)[kind].bytes += bytes;
  }

  int size_;
  SimLinks links_;
  std::shared_ptr<CollectiveCounts> counts_;
};

/// The backend of virtual time.
struct Sim {
  using Runtime = SimRuntime;
  using Communicator = SimCommunicator;
};

static_assert(Backend<Sim>);

}  // namespace tessera
