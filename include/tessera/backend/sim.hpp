// Virtual time: buffers are byte counts, streams and events are clocks. The engine is the same
// code; no memory is touched, so a model of any size runs on a laptop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

#include "tessera/backend/backend.hpp"
#include "tessera/exact/elementwise.hpp"

namespace tessera {

/// The device of a simulated rank: sustained rates.
struct SimOptions {
  double flops_per_second = 400e12;
  double memory_bytes_per_second = 3e12;
};

/// One simulated rank's runtime. Addresses it hands out must not be dereferenced.
///
/// The host is taken to run ahead of the device without cost, as it does in a trainer that is not
/// bound by it; where it waits for the device (read, synchronize), later work starts no earlier.
class SimRuntime {
 public:
  using Options = SimOptions;
  struct Stream {
    double now_ns = 0;
  };
  struct Event {
    double at_ns = 0;
  };
  struct Mark {
    double at_ns = 0;
  };
  static constexpr bool holds_memory = false;
  static constexpr bool defers = false;
  static constexpr std::uint64_t norm_window = 0;

  explicit SimRuntime(const SimOptions& options = {}) : options_(options) {}

  void* allocate(std::uint64_t bytes) {
    allocated_bytes_ += bytes;
    return reinterpret_cast<void*>(kAddress);
  }
  void release(void*, std::uint64_t bytes) { allocated_bytes_ -= bytes; }
  void* allocate_staging(std::uint64_t) { return reinterpret_cast<void*>(kAddress); }
  void release_staging(void*) {}
  void* allocate_report(std::uint64_t bytes) { return ::operator new(bytes); }
  void release_report(void* memory) { ::operator delete(memory); }
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }

  Stream& stream(StreamKind kind) { return streams_[static_cast<int>(kind)]; }

  void record(Event& event, Stream& stream) { event.at_ns = start(stream); }
  void wait(Stream& stream, Event& event) { stream.now_ns = std::max(stream.now_ns, event.at_ns); }
  void synchronize(Stream& stream) { host_ns_ = std::max(host_ns_, stream.now_ns); }
  void synchronize(Event& event) { host_ns_ = std::max(host_ns_, event.at_ns); }
  void mark(Mark& mark, Stream& stream) { mark.at_ns = start(stream); }
  void keep_time(Mark&) {}
  std::int64_t time_ns(const Mark& mark) const { return static_cast<std::int64_t>(mark.at_ns); }
  std::int64_t now_ns() const { return static_cast<std::int64_t>(host_ns_); }

  void copy(Stream& stream, void*, const void*, std::uint64_t bytes) {
    move_bytes(stream, 2 * bytes);
  }
  /// The simulated device holds zeros: every step has the norm 0.
  void copy_report(Stream& stream, void* to, const void*, std::uint64_t bytes) {
    std::memset(to, 0, bytes);
    move_bytes(stream, bytes);
  }
  void fill(Stream& stream, void*, std::uint8_t, std::uint64_t bytes) { move_bytes(stream, bytes); }
  /// The simulated device holds zeros.
  void read(Stream& stream, void* to, const void*, std::uint64_t bytes) {
    std::memset(to, 0, bytes);
    synchronize(stream);
  }
  void write(Stream& stream, void*, const void*, std::uint64_t) { synchronize(stream); }

  template <class F, class... Refs>
  void transform(Stream& stream, std::uint64_t n, const F&, Refs... refs) {
    move_bytes(stream, n * (0 + ... + traffic(refs)));
  }
  template <class F, class... Refs>
  void transform_ranges(Stream& stream, std::span<const ElementRange> ranges, const ElementRange*,
                        const F&, Refs... refs) {
    std::uint64_t elements = 0;
    for (const ElementRange& range : ranges) elements += range.count;
    move_bytes(stream, elements * (0 + ... + traffic(refs)));
  }
  template <class F>
  void for_each(Stream&, std::uint64_t, const F&) {}
  void norm_nodes(Stream& stream, NormKind, std::span<const NormRange> ranges, const NormRange*) {
    std::uint64_t bytes = 0;
    for (const NormRange& range : ranges) bytes += range.elements * size_of(range.dtype);
    move_bytes(stream, bytes);
  }

  void ahead_of_collective(Stream&) {}
  void compute(const Cost& cost) {
    spend(stream(StreamKind::compute), std::max(cost.flops / options_.flops_per_second,
                                                cost.bytes / options_.memory_bytes_per_second));
  }
  /// Keeps a stream busy.
  void spend(Stream& stream, double seconds) { stream.now_ns = start(stream) + seconds * 1e9; }

  bool poisons() const { return false; }
  bool capturing() const { return false; }
  std::uint64_t begin_annotation(const char*, std::uint32_t) { return 0; }
  void end_annotation(std::uint64_t) {}
  void check() {}
  void reset() {}

 private:
  static constexpr std::uintptr_t kAddress = std::uintptr_t{1} << 20;

  template <class T>
  static constexpr std::uint64_t traffic(const In<T>&) {
    return sizeof(T);
  }
  template <class T>
  static constexpr std::uint64_t traffic(const Out<T>&) {
    return sizeof(T);
  }
  template <class T>
  static constexpr std::uint64_t traffic(const InOut<T>&) {
    return 2 * sizeof(T);
  }
  static constexpr std::uint64_t traffic(const InOutSplit&) { return 8; }
  template <int field>
  static constexpr std::uint64_t traffic(const InOutStochastic<field>&) {
    return 4;
  }

  double start(Stream& stream) { return stream.now_ns = std::max(stream.now_ns, host_ns_); }
  void move_bytes(Stream& stream, std::uint64_t bytes) {
    spend(stream, static_cast<double>(bytes) / options_.memory_bytes_per_second);
  }

  SimOptions options_;
  Stream streams_[kStreamKinds];
  double host_ns_ = 0;
  std::uint64_t allocated_bytes_ = 0;
};

}  // namespace tessera
