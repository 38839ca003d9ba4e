// A Runtime and a communicator on a Kokkos execution space, as far as the tests need them.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

namespace {

namespace ts = tessera;

/// Lanes of width 1 and what runs over them. noinline, so that the arithmetic stays within the
/// StrictRounding of the caller: on a space of host threads it is the worker's.
template <class F, std::size_t... I, class... Refs>
[[gnu::noinline]] void run_elements(const F& f, std::uint64_t begin, std::uint64_t end,
                                    std::index_sequence<I...>, const Refs&... refs) {
  using R = ts::Lanes<1>;
  for (std::uint64_t i = begin; i != end; ++i) {
    R lanes[] = {ts::detail::load_lanes<R>(refs, i)...};
    f(ts::detail::as_argument(refs, lanes[I])...);
    (ts::detail::store_lanes(refs, i, lanes[I]), ...);
  }
}

/// One node of the norm's tree, from the elements [data, data + elements).
[[gnu::noinline]] inline double node_of(ts::NormKind kind, const float* data,
                                        std::uint64_t elements) {
  using D = ts::detail::DoubleLanes<1>;
  ts::detail::NodeStack stack(kind);
  for (std::uint64_t begin = 0; begin < elements; begin += ts::kCell) {
    const std::uint64_t count = std::min(ts::kCell, elements - begin);
    float padded[ts::kCell] = {};
    for (std::uint64_t i = 0; i != count; ++i) padded[i] = data[begin + i];
    stack.push({{begin / ts::kCell, 0}, ts::detail::whole_cell<D>(kind, padded)});
  }
  return ts::detail::with_one_nan(stack.fold_all());
}

struct KokkosOptions {
  bool side_by_side = true;  ///< false: all streams run on the caller's thread
};

/// Kokkos has execution space instances, whose work is in order, but neither events nor waits
/// between instances: a queue of the library's stands in front of each instance and fences where
/// others look.
template <class Space>
class KokkosRuntime {
 public:
  using Memory = typename Space::memory_space;
  using Options = KokkosOptions;
  using Event = ts::HostEvent;
  struct Mark {
    std::atomic<std::int64_t> ns{0};
  };
  struct Stream {
    explicit Stream(ts::HostStream::Where where) : queue(where) {}

    /// What comes after it in the queue sees what the instance did before it.
    void fence() {
      queue.enqueue([this] { space.fence(); });
    }

    Space space;
    ts::HostStream queue;  // last: its worker uses the space
  };
  static constexpr bool holds_memory = true;
  static constexpr bool defers = false;
  static constexpr std::uint64_t norm_window = 0;

  explicit KokkosRuntime(const KokkosOptions& options = {})
      : compute_(ts::HostStream::Where::caller),
        gather_(side_stream(options)),
        reduce_(side_stream(options)) {}

  void* allocate(std::uint64_t bytes) {
    if (bytes == 0) return nullptr;
    try {
      return Kokkos::kokkos_malloc<Memory>("tessera", bytes);
    } catch (const std::exception& error) {
      ts::detail::fail("tessera: out of memory: cannot allocate ", bytes, " bytes in ",
                       Memory::name(), ": ", error.what());
    }
  }
  void release(void* memory, std::uint64_t) {
    if (memory != nullptr) Kokkos::kokkos_free<Memory>(memory);
  }

  void* allocate_staging(std::uint64_t bytes) { return allocate(bytes); }
  void release_staging(void* memory) { release(memory, 0); }
  void* allocate_report(std::uint64_t bytes) { return ::operator new(bytes); }
  void release_report(void* memory) { ::operator delete(memory); }

  Stream& stream(ts::StreamKind kind) {
    switch (kind) {
      case ts::StreamKind::compute: return compute_;
      case ts::StreamKind::gather: return gather_;
      case ts::StreamKind::reduce: return reduce_;
    }
    return compute_;
  }

  void record(Event& event, Stream& stream) {
    const std::uint64_t number = event.announce();
    stream.queue.enqueue_always([&stream, &event, number] {
      stream.space.fence();
      event.reach(number);
    });
  }
  void wait(Stream& stream, Event& event) {
    const std::uint64_t number = event.announced();
    stream.queue.enqueue_always([&event, number] { event.wait_for(number); });
  }
  void synchronize(Stream& stream) {
    stream.fence();
    stream.queue.synchronize();
  }

  void synchronize(Event& event) { event.wait_for(event.announced()); }

  void mark(Mark& mark, Stream& stream) {
    stream.queue.enqueue_always([this, &mark, &stream] {
      stream.space.fence();
      mark.ns.store(now_ns(), std::memory_order_relaxed);
    });
  }
  std::int64_t now_ns() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  void keep_time(Mark&) {}
  std::int64_t time_ns(const Mark& mark) const { return mark.ns.load(std::memory_order_relaxed); }

  void copy(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    if (to != from) enqueue_copy<Memory, Memory>(stream, to, from, bytes);
  }
  void copy_report(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    enqueue_copy<Kokkos::HostSpace, Memory>(stream, to, from, bytes);
  }
  void fill(Stream& stream, void* to, std::uint8_t byte, std::uint64_t bytes) {
    if (bytes == 0) return;
    stream.queue.enqueue([=, &stream] {
      Kokkos::deep_copy(stream.space, bytes_at<Memory, unsigned char>(to, bytes), byte);
    });
  }
  void read(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    enqueue_copy<Kokkos::HostSpace, Memory>(stream, to, from, bytes);
    synchronize(stream);
    stream.queue.check();
  }
  void write(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    enqueue_copy<Memory, Kokkos::HostSpace>(stream, to, from, bytes);
    synchronize(stream);
    stream.queue.check();
  }

  template <class F, class... Refs>
  void transform(Stream& stream, std::uint64_t n, F f, Refs... refs) {
    if (n == 0) return;
    stream.queue.enqueue([=, this, &stream] { run_blocks(stream, n, f, refs...); });
  }

  template <class F, class... Refs>
  void transform_ranges(Stream& stream, std::span<const ts::ElementRange> ranges,
                        const ts::ElementRange*, F f, Refs... refs) {
    for (const ts::ElementRange& range : ranges) {
      stream.queue.enqueue([=, this, &stream] {
        if (!f.enabled()) return;
        run_blocks(stream, range.count, f.prepare(range.setting), Refs{refs.data + range.begin}...);
      });
    }
  }
  template <class F>
  void for_each(Stream& stream, std::uint64_t n, F f) {
    if (n == 0) return;
    stream.queue.enqueue([=, &stream] {
      Kokkos::parallel_for("tessera::for_each", Range(stream.space, 0, n),
                           [=](const std::uint64_t i) { f(i); });
    });
  }

  void norm_nodes(Stream& stream, ts::NormKind kind, std::span<const ts::NormRange> ranges,
                  const ts::NormRange*) {
    for (const ts::NormRange& range : ranges) {
      norm_nodes(stream, kind, static_cast<const float*>(range.data), range.first_cell,
                 range.elements, range.nodes);
    }
  }
  void norm_nodes(Stream& stream, ts::NormKind kind, const float* data, std::uint64_t first_cell,
                  std::uint64_t elements, double* out) {
    if (elements == 0) return;
    stream.queue.enqueue([=, &stream] {
      std::vector<ts::TreeNode> nodes;
      ts::for_each_node(first_cell, first_cell + ts::cells_of(elements),
                        [&](const ts::TreeNode& node) { nodes.push_back(node); });
      const ts::TreeNode* at = nodes.data();
      Kokkos::parallel_for(
          "tessera::norm_nodes", Range(stream.space, 0, nodes.size()), [=](const std::uint64_t i) {
            const std::uint64_t begin = (at[i].first_cell - first_cell) * ts::kCell;
            const std::uint64_t most = at[i].cells() * ts::kCell;
            const ts::StrictRounding strict;
            out[i] = ts::detail::pin(node_of(kind, data + begin, std::min(most, elements - begin)));
          });
      stream.space.fence();  // the nodes' list ends here
    });
  }

  void ahead_of_collective(Stream&) {}
  void compute(const ts::Cost&) {}
  bool poisons() const { return false; }
  bool capturing() const { return false; }
  std::uint64_t begin_annotation(const char*, std::uint32_t) { return 0; }
  void end_annotation(std::uint64_t) {}
  void check() {
    gather_.queue.check();
    reduce_.queue.check();
  }
  void reset() {
    gather_.queue.reset();
    reduce_.queue.reset();
  }

 private:
  template <class F, class... Refs>
  void run_blocks(Stream& stream, std::uint64_t n, F f, Refs... refs) {
    // A block an index: the control register belongs to whichever thread runs it.
    const std::uint64_t blocks = (n + kBlock - 1) / kBlock;
    Kokkos::parallel_for("tessera::transform", Range(stream.space, 0, blocks),
                         [=](const std::uint64_t block) {
                           const std::uint64_t begin = block * kBlock;
                           const ts::StrictRounding strict;
                           run_elements(f, begin, std::min(begin + kBlock, n),
                                        std::index_sequence_for<Refs...>{}, refs...);
                         });
  }

  using Range = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::uint64_t>>;
  static constexpr std::uint64_t kBlock = 64;

  static ts::HostStream::Where side_stream(const KokkosOptions& options) {
    return options.side_by_side ? ts::HostStream::Where::worker : ts::HostStream::Where::caller;
  }

  template <class Where, class Byte, class Pointer>
  static auto bytes_at(Pointer* memory, std::uint64_t bytes) {
    using Bytes = Kokkos::View<Byte*, Where, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    return Bytes(static_cast<Byte*>(memory), bytes);
  }
  template <class To, class From>
  void enqueue_copy(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    if (bytes == 0) return;
    stream.queue.enqueue([=, &stream] {
      Kokkos::deep_copy(stream.space, bytes_at<To, unsigned char>(to, bytes),
                        bytes_at<From, const unsigned char>(from, bytes));
    });
  }

  Stream compute_;
  Stream gather_;
  Stream reduce_;
};

/// In-process ranks on the runtime's streams. The memory has to be the process's.
template <class Space>
class KokkosRanks {
 public:
  using Stream = typename KokkosRuntime<Space>::Stream;

  KokkosRanks() = default;
  explicit KokkosRanks(ts::InProcess ranks) : ranks_(std::move(ranks)) {}

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  KokkosRanks channel() { return KokkosRanks(ranks_.channel()); }

  void all_gather(Stream& stream, ts::CollectiveTag tag,
                  std::span<const ts::GatherSegment> segments) {
    stream.fence();
    ranks_.all_gather(stream.queue, tag, segments);
  }
  static constexpr bool needs_reduce_scratch = false;
  void reduce_scatter(Stream& stream, ts::CollectiveTag tag,
                      std::span<const ts::ReduceSegment> segments, std::byte* = nullptr) {
    stream.fence();
    ranks_.reduce_scatter(stream.queue, tag, segments);
  }
  void broadcast(Stream& stream, ts::CollectiveTag tag, void* data, std::uint64_t bytes, int root) {
    stream.fence();
    ranks_.broadcast(stream.queue, tag, data, bytes, root);
  }

  ts::CollectiveCounts counts() const { return ranks_.counts(); }
  void abort(const std::string& reason) { ranks_.abort(reason); }
  void reset() { ranks_.reset(); }

 private:
  ts::InProcess ranks_;
};

struct KokkosBackend {
  using Runtime = KokkosRuntime<Kokkos::Serial>;
  using Communicator = KokkosRanks<Kokkos::Serial>;
};

static_assert(ts::Runtime<KokkosRuntime<Kokkos::Serial>>);
static_assert(ts::Backend<KokkosBackend>);

}  // namespace
