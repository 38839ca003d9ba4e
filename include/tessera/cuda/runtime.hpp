// The CUDA runtime of one rank: its device, its memory, its streams and what runs on them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>

#include "tessera/backend/backend.hpp"
#include "tessera/cuda/annotation.hpp"
#include "tessera/cuda/connections.hpp"
#include "tessera/cuda/delay.hpp"
#include "tessera/cuda/elementwise.hpp"
#include "tessera/cuda/error.hpp"
#include "tessera/cuda/for_each.hpp"
#include "tessera/cuda/norm.hpp"
#include "tessera/cuda/self_test.hpp"
#include "tessera/cuda/stream.hpp"

namespace tessera {

/// A rank's device and stream, and the test modes of the CUDA backend.
struct CudaOptions {
  /// It becomes the current one of the thread that makes the Shard, and stays so while that thread
  /// calls it. -1: the thread's current device.
  int device = -1;
  /// The stream your kernels run on: leases order gathers and reductions against it. The default is
  /// the calling thread's own, which also keeps the order of kernels launched without a stream.
  cudaStream_t compute = cudaStreamPerThread;
  /// Memory that is given back is filled with 0xFF (NaN in every float type).
  bool poison = false;
  /// Streams are held back by random times up to this, ahead of collectives and events.
  std::chrono::microseconds jitter{0};
  std::uint64_t jitter_seed = 1;
  /// A known delay ahead of each collective on the gather and on the reduce stream.
  std::chrono::microseconds gather_delay{0};
  std::chrono::microseconds reduce_delay{0};
};

/// One rank's streams on one GPU. Work is enqueued by the thread that uses the Shard; nothing here
/// waits for the device but synchronize, read, write and the destructor.
class CudaRuntime {
 public:
  using Options = CudaOptions;
  using Stream = CudaStream;
  using Event = CudaEvent;
  using Mark = CudaMark;
  static constexpr bool holds_memory = true;
  static constexpr bool defers = true;
  static constexpr std::uint64_t norm_window = detail::kNormWindow;

  /// Throws Error without a usable device, with CUDA_DEVICE_MAX_CONNECTIONS=1, under which streams
  /// wait for each other, and on a device that does not compute the host's bits.
  explicit CudaRuntime(const CudaOptions& options = {}) : options_(options) {
    detail::prepare_cuda_connections();
    if (options_.device < 0) {
      detail::check_cuda(cudaGetDevice(&options_.device), "looking for a device");
    } else {
      detail::check_cuda(cudaSetDevice(options_.device), "choosing the device");
    }
    detail::check_cuda(cudaFree(nullptr), "starting on the device");
    int least = 0;
    int greatest = 0;
    detail::check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
    compute_ = {options_.compute, StreamKind::compute, options_.device, nullptr};
    gather_ = side_stream(StreamKind::gather, greatest);
    reduce_ = side_stream(StreamKind::reduce, greatest);
    random_ = options.jitter_seed * 2 + 1;
    detail::check_cuda_bits(options_.device, gather_.handle);
    set_clock();
  }
  ~CudaRuntime() {
    (void)cudaStreamDestroy(gather_.handle);
    (void)cudaStreamDestroy(reduce_.handle);
  }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;

  int device() const { return options_.device; }
  const CudaOptions& options() const { return options_; }

  void* allocate(std::uint64_t bytes) {
    if (bytes == 0) return nullptr;
    const CudaDeviceScope scope(options_.device);
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      std::size_t free = 0;
      std::size_t total = 0;
      (void)cudaMemGetInfo(&free, &total);
      detail::fail("tessera: out of memory: cannot allocate ", bytes, " bytes on device ",
                   options_.device, ", which has ", free, " of ", total, " free");
    }
    detail::check_cuda(error, "allocating the plan");
    if (options_.poison) {
      detail::check_cuda(cudaMemsetAsync(memory, 0xFF, bytes, compute_.handle), "poisoning");
    }
    return memory;
  }
  void release(void* memory, std::uint64_t) { (void)cudaFree(memory); }
  void* allocate_staging(std::uint64_t bytes) {
    const CudaDeviceScope scope(options_.device);
    void* memory = nullptr;
    detail::check_cuda(cudaMalloc(&memory, bytes), "allocating a buffer for a passing copy");
    return memory;
  }
  void release_staging(void* memory) { (void)cudaFree(memory); }
  void* allocate_report(std::uint64_t bytes) {
    void* memory = nullptr;
    detail::check_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable),
                       "allocating pinned memory for the step's report");
    std::memset(memory, 0, bytes);
    return memory;
  }
  void release_report(void* memory) { (void)cudaFreeHost(memory); }

  Stream& stream(StreamKind kind) {
    switch (kind) {
      case StreamKind::compute: return compute_;
      case StreamKind::gather: return gather_;
      case StreamKind::reduce: return reduce_;
    }
    return compute_;
  }

  void record(Event& event, Stream& stream) {
    hold_back_at_random(stream);
    detail::check_cuda(cudaEventRecord(event.make(stream.device), stream.handle),
                       "recording an event");
    event.capture = capture_;
  }
  void wait(Stream& stream, Event& event) {
    // What was recorded outside a capture had ended when it began; what was recorded inside one
    // was waited for, by every stream, when its graph was launched.
    if (event.handle() == nullptr || event.capture != capture_) return;
    detail::check_cuda(cudaStreamWaitEvent(stream.handle, event.handle(), 0),
                       "waiting for an event");
  }
  void synchronize(Stream& stream) {
    detail::check_cuda(cudaStreamSynchronize(stream.handle), "waiting for a stream");
  }
  void synchronize(Event& event) {
    if (event.handle() == nullptr) return;
    detail::check_cuda(cudaEventSynchronize(event.handle()), "waiting for an event");
  }

  void mark(Mark& mark, Stream& stream) {
    const unsigned how = capture_ != 0 ? cudaEventRecordExternal : cudaEventRecordDefault;
    detail::check_cuda(cudaEventRecordWithFlags(mark.make(stream.device), stream.handle, how),
                       "taking a timestamp");
  }
  std::int64_t now_ns() const { return steady_ns(); }
  /// Timestamps are a float of milliseconds since another one, which is not precise over minutes:
  /// every step's end becomes the one that later times are relative to.
  void keep_time(Mark& mark) {
    clock_ns_ = time_ns(mark);
    clock_.swap(mark);
  }
  std::int64_t time_ns(const Mark& mark) const {
    float ms = 0;
    detail::check_cuda(cudaEventElapsedTime(&ms, clock_.handle(), mark.handle()),
                       "reading a timestamp");
    return clock_ns_ + static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
  }

  /// Either side may be the caller's memory, pinned or not, or a device's.
  void copy(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    if (bytes == 0 || to == from) return;
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.handle),
                       "copying");
  }
  void copy_report(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    copy(stream, to, from, bytes);
  }
  void fill(Stream& stream, void* to, std::uint8_t byte, std::uint64_t bytes) {
    if (bytes == 0) return;
    detail::check_cuda(cudaMemsetAsync(to, byte, bytes, stream.handle), "filling memory");
  }
  void read(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    copy(stream, to, from, bytes);
    synchronize(stream);
  }
  void write(Stream& stream, void* to, const void* from, std::uint64_t bytes) {
    read(stream, to, from, bytes);
  }

  template <class F, class... Refs>
  void transform(Stream& stream, std::uint64_t n, F f, Refs... refs) {
    detail::launch_elementwise(stream.handle, n, f, refs...);
  }
  template <class F, class... Refs>
  void transform_ranges(Stream& stream, std::span<const ElementRange> ranges,
                        const ElementRange* resident, F f, Refs... refs) {
    if (ranges.empty()) return;
    const ElementRange& last = ranges.back();
    const std::uint64_t blocks = last.first_block + range_blocks(last.count);
    detail::launch_ranges(stream.handle, resident, static_cast<std::uint32_t>(ranges.size()),
                          blocks, f, refs...);
  }
  template <class F>
  void for_each(Stream& stream, std::uint64_t n, F f) {
    detail::launch_for_each(stream.handle, n, f);
  }
  void norm_nodes(Stream& stream, NormKind kind, std::span<const NormRange> ranges,
                  const NormRange* resident) {
    if (ranges.empty()) return;
    const NormRange& last = ranges.back();
    const std::uint64_t windows =
        last.first_window - ranges.front().first_window +
        windows_of(last.first_cell, last.first_cell + cells_of(last.elements), norm_window);
    detail::launch_norm(stream.handle, kind, resident, static_cast<std::uint32_t>(ranges.size()),
                        windows);
  }

  void ahead_of_collective(Stream& stream) {
    hold_back_at_random(stream);
    hold_back(stream,
              stream.kind == StreamKind::gather ? options_.gather_delay : options_.reduce_delay);
  }
  void compute(const Cost&) {}
  bool poisons() const { return options_.poison; }
  std::uint64_t begin_annotation(const char* text, std::uint32_t category) {
    return detail::begin_annotation(text, category);
  }
  void end_annotation(std::uint64_t range) { detail::end_annotation(range); }

  void check() {
    for (const Stream* stream : {&gather_, &reduce_, &compute_}) {
      if (stream->failure) std::rethrow_exception(stream->failure);
    }
    cudaError_t error = cudaPeekAtLastError();
    if (error == cudaErrorNotReady) {  // left behind by a question about an event or a stream
      (void)cudaGetLastError();
      error = cudaSuccess;
    }
    detail::check_cuda(error, "an earlier call");
  }
  void reset() { gather_.failure = reduce_.failure = compute_.failure = nullptr; }

  /// From now on the streams record a graph, of which the compute stream is the beginning.
  void begin_capture();
  /// Their work, which has not run.
  cudaGraph_t end_capture();
  /// Ends a capture whose work is not wanted; never throws.
  void cancel_capture() noexcept;
  bool capturing() const { return capture_ != 0; }
  /// Launches a graph of a capture on the compute stream, between what the other streams hold and
  /// what they are given later.
  void launch(cudaGraphExec_t graph);

 private:
  Stream side_stream(StreamKind kind, int priority) const {
    Stream stream{nullptr, kind, options_.device, nullptr};
    detail::check_cuda(
        cudaStreamCreateWithPriority(&stream.handle, cudaStreamNonBlocking, priority),
        "making a stream");
    return stream;
  }

  static std::int64_t steady_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  void set_clock() {
    mark(clock_, gather_);
    detail::check_cuda(cudaEventSynchronize(clock_.handle()), "setting the clock");
    clock_ns_ = steady_ns();
  }

  void hold_back(Stream& stream, std::chrono::microseconds time) {
    if (time.count() <= 0) return;
    detail::launch_delay(stream.handle, static_cast<std::uint64_t>(time.count()) * 1000);
  }
  // The delayed-stream test mode: any order of streams that the waits allow should come up.
  void hold_back_at_random(Stream& stream) {
    if (options_.jitter.count() <= 0) return;
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    const auto most = static_cast<std::uint64_t>(options_.jitter.count()) + 1;
    hold_back(stream, std::chrono::microseconds((random_ >> 33) % most));
  }

  CudaOptions options_;
  Stream compute_;
  Stream gather_;
  Stream reduce_;
  std::uint64_t random_ = 1;
  Mark clock_;
  std::int64_t clock_ns_ = 0;
  std::uint64_t capture_ = 0;  ///< which capture is going on; 0: none
  std::uint64_t captures_ = 0;
  Event fork_;
  Event joins_[2];
};

static_assert(Runtime<CudaRuntime>);

inline void CudaRuntime::begin_capture() {
  if (capture_ != 0) detail::fail("tessera: CUDA: a capture is already going on");
  // Thread-local: what other threads of the process do meanwhile is their business.
  detail::check_cuda(cudaStreamBeginCapture(compute_.handle, cudaStreamCaptureModeThreadLocal),
                     "beginning a graph");
  capture_ = ++captures_;
  record(fork_, compute_);
  wait(gather_, fork_);
  wait(reduce_, fork_);
}

inline cudaGraph_t CudaRuntime::end_capture() {
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaSuccess;
  try {
    record(joins_[0], gather_);
    record(joins_[1], reduce_);
    wait(compute_, joins_[0]);
    wait(compute_, joins_[1]);
  } catch (...) {  // the capture must end all the same, or nothing can be enqueued any more
    capture_ = 0;
    (void)cudaStreamEndCapture(compute_.handle, &graph);
    throw;
  }
  capture_ = 0;
  error = cudaStreamEndCapture(compute_.handle, &graph);
  detail::check_cuda(error, "ending a graph");
  return graph;
}

inline void CudaRuntime::cancel_capture() noexcept {
  capture_ = 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  if (cudaStreamIsCapturing(compute_.handle, &status) == cudaSuccess &&
      status != cudaStreamCaptureStatusNone) {
    (void)cudaStreamEndCapture(compute_.handle, &graph);
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}

inline void CudaRuntime::launch(cudaGraphExec_t graph) {
  record(joins_[0], gather_);
  record(joins_[1], reduce_);
  wait(compute_, joins_[0]);
  wait(compute_, joins_[1]);
  detail::check_cuda(cudaGraphLaunch(graph, compute_.handle), "launching a graph");
  record(fork_, compute_);
  wait(gather_, fork_);
  wait(reduce_, fork_);
}

}  // namespace tessera
