// What the engine asks of a communicator, and the words it uses.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/tensor/dtype.hpp"

namespace tessera {

enum class CollectiveKind : std::uint8_t {
  all_gather,      ///< parameters, and Replicate's sums
  reduce_scatter,  ///< gradients
  broadcast,
  scalars,  ///< the norm's tree nodes: one small all-gather a step
};
inline constexpr int kCollectiveKinds = 4;

constexpr const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::scalars: return "scalars";
  }
  return "?";
}

/// What a collective is for; ranks that disagree on it are told apart by it. `name` must outlive
/// the collective.
struct CollectiveTag {
  CollectiveKind kind = CollectiveKind::all_gather;
  std::string_view name;
};

/// One contiguous part of an all-gather: rank r's `piece` arrives at full + r * stride on every
/// rank. In place where piece == full + rank * stride.
struct GatherSegment {
  const void* piece = nullptr;
  void* full = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t stride = 0;  ///< bytes between two ranks' parts in `full`
};

/// One contiguous part of a reduce-scatter. With x_r the elements [rank * stride, + elements) of
/// rank r's `full`:  out = (accumulate ? out : 0) + scale * (((x_0 + x_1) + x_2) + ...), in fp32,
/// and rounded to nearest once where `out` is bf16.
struct ReduceSegment {
  const void* full = nullptr;
  DType dtype = DType::f32;  ///< f32 or bf16
  void* out = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t stride = 0;  ///< elements between two ranks' parts in `full`
  float scale = 1;
  bool accumulate = false;
  DType out_dtype = DType::f32;  ///< f32, or bf16 where `dtype` is bf16
};

/// Collectives of one kind that a rank has taken part in, and the bytes it received from others.
struct CollectiveCount {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  friend constexpr bool operator==(const CollectiveCount&, const CollectiveCount&) = default;
};

/// Counts by kind.
struct CollectiveCounts {
  CollectiveCount kinds[kCollectiveKinds]{};

  CollectiveCount& operator[](CollectiveKind kind) { return kinds[static_cast<int>(kind)]; }
  const CollectiveCount& operator[](CollectiveKind kind) const {
    return kinds[static_cast<int>(kind)];
  }
  CollectiveCounts& operator-=(const CollectiveCounts& other) {
    for (int k = 0; k < kCollectiveKinds; ++k) {
      kinds[k].count -= other.kinds[k].count;
      kinds[k].bytes -= other.kinds[k].bytes;
    }
    return *this;
  }
  CollectiveCounts& operator+=(const CollectiveCounts& other) {
    for (int k = 0; k < kCollectiveKinds; ++k) {
      kinds[k].count += other.kinds[k].count;
      kinds[k].bytes += other.kinds[k].bytes;
    }
    return *this;
  }
  friend constexpr bool operator==(const CollectiveCounts&, const CollectiveCounts&) = default;
};

/// A communicator is a cheap handle on one rank's place in a group. Collectives are enqueued on a
/// stream and run there; all ranks enqueue the same ones in the same order on a channel. The
/// segments are copied by the call, what they point at is not.
/// - reduce_scatter gets `scratch`, as many bytes as the segments' full buffers hold, where
///   needs_reduce_scratch is true and there is more than one rank; null otherwise. It is free again
///   for what is enqueued on the stream later;
/// - channel(): a further, independent order of collectives over the same ranks (a collective);
/// - counts(): of the collectives on this handle: those that have completed on Host, those that
///   have been enqueued on devices;
/// - abort(reason): every collective of the group, pending or to come, fails: on every rank where
///   ranks are threads; on this one where they are processes, and on the others by time-out;
/// - reset(): a collective that makes this channel usable again after an abort; none of its
///   collectives may be under way. Throws where a group cannot come back (NCCL).
template <class C, class B>
concept Communicator = requires(C c, const C cc, typename B::Stream& stream, CollectiveTag tag,
                                std::span<const GatherSegment> gather,
                                std::span<const ReduceSegment> reduce, void* p) {
  { cc.rank() } -> std::same_as<int>;
  { cc.size() } -> std::same_as<int>;
  { c.channel() } -> std::same_as<C>;
  c.all_gather(stream, tag, gather);
  { C::needs_reduce_scratch } -> std::convertible_to<bool>;
  c.reduce_scatter(stream, tag, reduce, static_cast<std::byte*>(p));
  c.broadcast(stream, tag, p, std::uint64_t{}, int{});
  { c.counts() } -> std::same_as<CollectiveCounts>;
  c.abort(std::string{});
  c.reset();
};

/// A communicator may have memory that its all-gathers move faster, and that the plan then lies in:
/// allocate gives null where it has none, collectively.
template <class C>
concept AllocatesMemory = requires(C c, void* memory, std::uint64_t bytes) {
  { c.allocate(bytes) } -> std::same_as<void*>;
  c.release(memory);
};

/// It may wait for streams and events itself, with a time-out and an eye on the other ranks.
template <class C, class B>
concept WatchesStreams = requires(C c, typename B::Stream& stream, typename B::Event& event,
                                  CollectiveTag tag) {
  c.synchronize(stream, tag);
  c.synchronize(event, tag);
};

/// It may say how bytes travel on it, and why not otherwise.
template <class C>
concept DescribesTransport = requires(const C c) {
  { c.transport_note() } -> std::convertible_to<std::string>;
};

}  // namespace tessera
