// What the engine asks of a backend: memory, in-order streams, events, copies and element-wise
// kernels. Shipped models: HostRuntime (backend/host.hpp), CudaRuntime (cuda/runtime.hpp) and
// SimRuntime (backend/sim.hpp).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/ranges.hpp"
#include "tessera/exact/cell_sum.hpp"

namespace tessera {

/// compute is the user's own stream (on Host the caller's thread); the others belong to the engine.
enum class StreamKind : std::uint8_t { compute, gather, reduce };
inline constexpr int kStreamKinds = 3;

constexpr const char* name_of(StreamKind kind) {
  switch (kind) {
    case StreamKind::compute: return "compute";
    case StreamKind::gather: return "gather";
    case StreamKind::reduce: return "reduce";
  }
  return "?";
}

/// What a lease's computation costs. Only Sim reads it.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

/// A runtime owns one rank's streams. Semantics, for every model:
/// - work enqueued on one stream runs in order; streams run beside each other;
/// - record(event, stream) marks the end of what the stream holds so far; wait(stream, event)
///   holds the stream back until the event's latest record has been reached; an event that was
///   never recorded holds nothing back; events may be recorded again;
/// - mark(mark, stream) is a record whose time can be read, in ns of one clock for all streams,
///   once the stream has passed it; keep_time(mark) says that later times may be read relative to
///   that one, which has been passed;
/// - `allocate` gives memory aligned to 64 bytes or throws Error; `allocate_staging` gives memory
/// of
///   the same kind for a passing copy, outside the plan; `allocate_report` gives memory that the
///   caller may read once a stream has written it;
/// - `read` and `write` move bytes between the caller's memory and the backend's and return when
///   the bytes have moved; the caller's side may also be memory of the backend's kind, where a
///   tensor lies there. Every other call only enqueues, or, on a stream that runs its work on the
///   caller's thread, does the work;
/// - `copy_report` copies from the backend's memory to the report's;
/// - `synchronize` of a stream or an event blocks the caller until what it holds has run, or until
///   its latest record has been reached;
/// - `transform(stream, n, f, refs...)` calls f as exact/elementwise.hpp says, with rounding to
///   nearest and without flush to zero on whatever thread it runs;
/// - `transform_ranges(stream, ranges, resident, f, refs...)` does so over several ranges:
///   `f.prepare(setting)` is what is called for a range's elements, and nothing is if
///   `f.enabled()` is false by then; `f.rounding_key(tensor)` gives arguments that are rounded
///   stochastically their key. `resident` is the same table in the backend's memory;
/// - `for_each(stream, n, f)` calls f(0) ... f(n - 1) in any order;
/// - `norm_nodes` folds each range, of a table or of a part of one, into the nodes of its tree;
/// - ahead_of_collective(stream) is called before each collective: the place of known delays;
/// - begin_annotation and end_annotation name what the caller is doing, for a profiler;
/// - capturing() tells that work is being recorded, not done: see cuda/graph.hpp;
/// - check() throws what a stream's work threw; from then on streams skip work until reset().
/// Where `defers` is true the caller runs ahead of the compute stream, and a step's report is read
/// when it is asked for. Calls come one at a time, each ordered after the one before.
template <class B>
concept Runtime = std::constructible_from<B, const typename B::Options&> &&
    std::default_initializable<typename B::Options> &&
    std::default_initializable<typename B::Event> && std::default_initializable<typename B::Mark> &&
    requires(B b, typename B::Stream& stream, typename B::Event& event, typename B::Mark& mark,
             void* p, const void* cp, std::uint64_t n, std::span<const NormRange> ranges,
             const NormRange* resident) {
  { B::holds_memory } -> std::convertible_to<bool>;  ///< false: addresses are never touched
  { B::defers } -> std::convertible_to<bool>;
  { B::norm_window } -> std::convertible_to<std::uint64_t>;  ///< 0: one pass, without partials
  { b.allocate(n) } -> std::same_as<void*>;
  b.release(p, n);
  { b.allocate_staging(n) } -> std::same_as<void*>;
  b.release_staging(p);
  { b.allocate_report(n) } -> std::same_as<void*>;
  b.release_report(p);
  { b.stream(StreamKind::compute) } -> std::same_as<typename B::Stream&>;
  b.record(event, stream);
  b.wait(stream, event);
  b.synchronize(stream);
  b.synchronize(event);
  b.mark(mark, stream);
  { b.time_ns(mark) } -> std::same_as<std::int64_t>;
  b.keep_time(mark);
  { b.now_ns() } -> std::same_as<std::int64_t>;  ///< the caller's time, of the marks' clock
  b.copy(stream, p, cp, n);
  b.copy_report(stream, p, cp, n);
  b.fill(stream, p, std::uint8_t{0}, n);
  b.read(stream, p, cp, n);
  b.write(stream, p, cp, n);
  b.norm_nodes(stream, NormKind::l2, ranges, resident);
  b.ahead_of_collective(stream);
  b.compute(Cost{});
  { b.poisons() } -> std::same_as<bool>;
  { b.capturing() } -> std::same_as<bool>;
  { b.begin_annotation("", std::uint32_t{}) } -> std::same_as<std::uint64_t>;
  b.end_annotation(std::uint64_t{});
  b.check();
  b.reset();
};

}  // namespace tessera
