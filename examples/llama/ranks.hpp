// The ranks of a run: threads of this process, or processes that a launcher started, over NCCL. One
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
#include <tessera/cuda.hpp>
#include <tessera/nccl.hpp>

namespace llama {

/// A communicator of tessera's. Copies share the channel.
class Ranks {
 private:
  template <class F>
  decltype(auto) each(F&& f) const {
    return std::visit([&f](auto& ranks) { return f(ranks); }, ranks_);
  }

 public:
  static constexpr bool needs_reduce_scratch = true;

  Ranks() : Ranks(tessera::Nccl()) {}
  explicit Ranks(tessera::CudaInProcess threads) : ranks_(std::move(threads)) {}
  explicit Ranks(tessera::Nccl processes) : ranks_(std::move(processes)) {}

  int rank() const {
    return each([](auto& ranks) { return ranks.rank(); });
  }
  int size() const {
    return each([](auto& ranks) { return ranks.size(); });
  }
  Ranks channel() {
    return each([this](auto& ranks) {
      Ranks made(ranks.channel());
      made.silent_ = silent_;
      return made;
    });
  }
  std::vector<double> exchange(double mine) {
    return each([mine](auto& ranks) { return ranks.exchange(mine); });
  }

  /// From now on parameters and gradients are neither sent nor added up, to time a step's compute
  /// alone: buffers keep what earlier steps left in them. Of all channels.
  void fall_silent() { *silent_ = true; }

  void all_gather(tessera::CudaStream& stream, tessera::CollectiveTag tag,
                  std::span<const tessera::GatherSegment> segments) {
    if (*silent_) return;
    each([&](auto& ranks) { ranks.all_gather(stream, tag, segments); });
  }
  void reduce_scatter(tessera::CudaStream& stream, tessera::CollectiveTag tag,
                      std::span<const tessera::ReduceSegment> segments, std::byte* scratch) {
    if (*silent_) return;
    each([&](auto& ranks) { ranks.reduce_scatter(stream, tag, segments, scratch); });
  }
  void broadcast(tessera::CudaStream& stream, tessera::CollectiveTag tag, void* data,
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
  std::string transport_note() const {
    return each([](auto& ranks) { return ranks.transport_note(); });
  }

  // What NCCL's ranks have beside: memory of their own, and an eye on each other while they wait.
  void* allocate(std::uint64_t bytes) {
    auto* const processes = std::get_if<tessera::Nccl>(&ranks_);
    return processes != nullptr ? processes->allocate(bytes) : nullptr;
  }
  void release(void* memory) { std::get<tessera::Nccl>(ranks_).release(memory); }
  void synchronize(const tessera::CudaStream& stream, tessera::CollectiveTag tag) {
    if (auto* const processes = std::get_if<tessera::Nccl>(&ranks_)) {
      processes->synchronize(stream, tag);
    } else {
      tessera::detail::check_cuda(cudaStreamSynchronize(stream.handle), "waiting for a stream");
    }
  }
  void synchronize(const tessera::CudaEvent& event, tessera::CollectiveTag tag) {
    if (auto* const processes = std::get_if<tessera::Nccl>(&ranks_)) {
      processes->synchronize(event, tag);
    } else if (event.handle() != nullptr) {
      tessera::detail::check_cuda(cudaEventSynchronize(event.handle()), "waiting for an event");
    }
  }

 private:
  // A handle: which calls change what it stands for is each communicator's business.
  mutable std::variant<tessera::CudaInProcess, tessera::Nccl> ranks_;
  std::shared_ptr<bool> silent_ = std::make_shared<bool>(false);
};

using Devices = tessera::CudaBackend<Ranks>;
static_assert(tessera::Backend<Devices>);

}  // namespace llama
