// The host backend: memory of the process, streams that are threads, kernels over SIMD lanes.
#pragma once

#include <stdlib.h>  // posix_memalign: the one call by which tensor memory is obtained

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

#include "tessera/backend/backend.hpp"
#include "tessera/backend/host_stream.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/cell_sum.hpp"
#include "tessera/exact/elementwise.hpp"
#include "tessera/exact/lanes.hpp"

namespace tessera {

// What calls SIMD lanes is a different entity in translation units with different instruction sets.
inline namespace TESSERA_ISA {

/// Test modes and delays of the host backend; all off by default.
struct HostOptions {
  /// Memory that is given back is filled with 0xFF (NaN in every float type): a read after
  /// release, or of a gradient buffer before its first write, shows.
  bool poison = false;
  /// Each piece of side-stream work is held back by a random time up to this.
  std::chrono::microseconds jitter{0};
  std::uint64_t jitter_seed = 1;
  /// A known delay ahead of each collective on the gather and on the reduce stream.
  std::chrono::microseconds gather_delay{0};
  std::chrono::microseconds reduce_delay{0};
};

/// One rank's host runtime. The caller's thread is the compute stream.
class HostRuntime {
 public:
  using Stream = HostStream;
  using Event = HostEvent;
  /// A timestamp taken when a stream passes it.
  struct Mark {
    std::atomic<std::int64_t> ns{0};
  };
  using Options = HostOptions;
  static constexpr bool holds_memory = true;
  static constexpr bool defers = false;
  static constexpr std::uint64_t norm_window = 0;

  explicit HostRuntime(const HostOptions& options = {})
      : options_(options),
        compute_(HostStream::Where::caller),
        gather_(HostStream::Where::worker, options.jitter, options.jitter_seed * 2),
        reduce_(HostStream::Where::worker, options.jitter, options.jitter_seed * 2 + 1) {}

  /// Exactly `bytes`, aligned to 64. Throws Error when there is no memory.
  void* allocate(std::uint64_t bytes) {
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    if (::posix_memalign(&memory, 64, bytes) != 0) {
      detail::fail("tessera: out of memory: cannot allocate ", bytes, " bytes on the host");
    }
    if (options_.poison) std::memset(memory, 0xFF, bytes);
    return memory;
  }
  void release(void* memory, std::uint64_t) { ::free(memory); }
  void* allocate_staging(std::uint64_t bytes) { return ::operator new(bytes); }
  void release_staging(void* memory) { ::operator delete(memory); }
  void* allocate_report(std::uint64_t bytes) { return ::operator new(bytes); }
  void release_report(void* memory) { ::operator delete(memory); }

  Stream& stream(StreamKind kind) {
    switch (kind) {
      case StreamKind::compute: return compute_;
      case StreamKind::gather: return gather_;
      case StreamKind::reduce: return reduce_;
    }
    return compute_;
  }

  void record(Event& event, Stream& stream) {
    const std::uint64_t number = event.announce();
    stream.enqueue_always([&event, number] { event.reach(number); });
  }
  void wait(Stream& stream, Event& event) {
    const std::uint64_t number = event.announced();
    stream.enqueue_always([&event, number] { event.wait_for(number); });
  }
  void synchronize(Stream& stream) { stream.synchronize(); }
  void synchronize(Event& event) { event.wait_for(event.announced()); }

  void mark(Mark& mark, Stream& stream) {
    stream.enqueue_always([this, &mark] { mark.ns.store(now_ns(), std::memory_order_relaxed); });
  }
  std::int64_t now_ns() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  void keep_time(Mark&) {}
  std::int64_t time_ns(const Mark& mark) const { return mark.ns.load(std::memory_order_relaxed); }

  void copy(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    if (bytes == 0 || to == from) return;
    stream.enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void copy_report(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    copy(stream, to, from, bytes);
  }
  void fill(Stream& stream, void* to, std::uint8_t byte, std::uint64_t bytes) {
    if (bytes == 0) return;
    stream.enqueue([=] { std::memset(to, byte, bytes); });
  }
  void read(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    copy(stream, to, from, bytes);
    stream.synchronize();
    stream.check();
  }
  void write(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    read(stream, to, from, bytes);
  }

  /// f over n elements: see exact/elementwise.hpp for refs and for what f sees.
  template <class F, class... Refs>
  void transform(Stream& stream, std::uint64_t n, F f, Refs... refs) {
    if (n == 0) return;
    stream.enqueue([=] { elementwise(n, f, refs...); });
  }

  template <class F, class... Refs>
  void transform_ranges(Stream& stream, std::span<const ElementRange> ranges, const ElementRange*,
                        F f, Refs... refs) {
    stream.enqueue([=] {
      if (!f.enabled()) return;
      for (const ElementRange& range : ranges) {
        const RoundingKey key = rounding_key_of<Refs...>(f, range);
        elementwise(range.count, f.prepare(range.setting),
                    detail::keyed(refs, key).from(range.begin)...);
      }
    });
  }
  template <class F>
  void for_each(Stream& stream, std::uint64_t n, F f) {
    stream.enqueue([=] {
      for (std::uint64_t i = 0; i < n; ++i) f(i);
    });
  }

  /// The fixed tree's nodes over the elements a rank holds: see exact/cell_sum.hpp.
  void norm_nodes(Stream& stream, NormKind kind, std::span<const NormRange> ranges,
                  const NormRange*) {
    stream.enqueue([=] {
      for (const NormRange& range : ranges) {
        if (range.elements == 0) continue;
        if (range.dtype == DType::bf16) {
          node_values(kind, static_cast<const bf16*>(range.data), range.first_cell, range.elements,
                      range.nodes);
        } else {
          node_values(kind, static_cast<const float*>(range.data), range.first_cell, range.elements,
                      range.nodes);
        }
      }
    });
  }

  void ahead_of_collective(Stream& stream) {
    const auto delay = &stream == &gather_ ? options_.gather_delay : options_.reduce_delay;
    if (delay.count() > 0) stream.enqueue([delay] { std::this_thread::sleep_for(delay); });
  }
  void compute(const Cost&) {}
  bool poisons() const { return options_.poison; }
  bool capturing() const { return false; }
  std::uint64_t begin_annotation(const char*, std::uint32_t) { return 0; }
  void end_annotation(std::uint64_t) {}
  const HostOptions& options() const { return options_; }

  void check() {
    gather_.check();
    reduce_.check();
  }
  void reset() {
    gather_.reset();
    reduce_.reset();
  }

 private:
  HostOptions options_;
  Stream compute_;
  Stream gather_;
  Stream reduce_;
};

static_assert(Runtime<HostRuntime>);

}  // namespace TESSERA_ISA
}  // namespace tessera
