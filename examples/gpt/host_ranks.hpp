// The ranks of a run on the host: threads of this process, or processes that mpirun started. One
// type serves both, so that the Shards are compiled once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <tessera/tessera.hpp>
#if defined(GPT_WITH_MPI)
#include <tessera/mpi.hpp>
#endif

namespace gpt {

/// A communicator of tessera's. Copies share the channel.
class HostRanks {
 private:
  template <class F>
  decltype(auto) each(F&& f) const {
    return std::visit([&f](auto& ranks) { return f(ranks); }, ranks_);
  }

 public:
  // Threads need none, and it would stand in their plan: processes have it from here.
  static constexpr bool needs_reduce_scratch = false;

  HostRanks() = default;
  explicit HostRanks(tessera::InProcess threads) : ranks_(std::move(threads)) {}
#if defined(GPT_WITH_MPI)
  explicit HostRanks(tessera::Mpi processes) : ranks_(std::move(processes)) {}
#endif

  int rank() const {
    return each([](auto& ranks) { return ranks.rank(); });
  }
  int size() const {
    return each([](auto& ranks) { return ranks.size(); });
  }
  HostRanks channel() {
    return each([](auto& ranks) { return HostRanks(ranks.channel()); });
  }
  HostRanks split(int color, int key) {
    return each([=](auto& ranks) { return HostRanks(ranks.split(color, key)); });
  }
  std::vector<double> exchange(double mine) const {
    return each([mine](auto& ranks) { return ranks.exchange(mine); });
  }

  void all_gather(tessera::HostStream& stream, tessera::CollectiveTag tag,
                  std::span<const tessera::GatherSegment> segments) {
    each([&](auto& ranks) { ranks.all_gather(stream, tag, segments); });
  }
  void reduce_scatter(tessera::HostStream& stream, tessera::CollectiveTag tag,
                      std::span<const tessera::ReduceSegment> segments, std::byte*) {
    std::byte* const memory = std::holds_alternative<tessera::InProcess>(ranks_)
                                  ? nullptr
                                  : scratch_->take(segments, static_cast<std::size_t>(size()));
    each([&](auto& ranks) { ranks.reduce_scatter(stream, tag, segments, memory); });
  }
  void broadcast(tessera::HostStream& stream, tessera::CollectiveTag tag, void* data,
                 std::uint64_t bytes, int root) {
    each([&](auto& ranks) { ranks.broadcast(stream, tag, data, bytes, root); });
  }

  tessera::CollectiveCounts counts() const {
    return each([](auto& ranks) { return ranks.counts(); });
  }
  void abort(const std::string& reason) {
    each([&](auto& ranks) { ranks.abort(reason); });
  }
  void reset() {
    each([](auto& ranks) { ranks.reset(); });
  }

 private:
  /// Reductions of a channel run one after the other and share it; one that is outgrown stays for
  /// those that are still to run.
  class Scratch {
   public:
    std::byte* take(std::span<const tessera::ReduceSegment> segments, std::size_t ranks) {
      std::size_t bytes = 0;
      for (const tessera::ReduceSegment& segment : segments) {
        bytes += (segment.elements * tessera::size_of(segment.dtype) + 64) * ranks;
      }
      if (all_.empty() || all_.back().size() < bytes) all_.emplace_back(bytes);
      return all_.back().data();
    }

   private:
    std::vector<std::vector<std::byte>> all_;
  };

#if defined(GPT_WITH_MPI)
  mutable std::variant<tessera::InProcess, tessera::Mpi> ranks_;
#else
  mutable std::variant<tessera::InProcess> ranks_;
#endif
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

}  // namespace gpt
