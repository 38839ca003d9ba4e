// Streams, events, timestamps and memory of the CUDA runtime.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;

namespace {

std::string error_of(auto&& body) {
  try {
    body();
  } catch (const ts::Error& error) {
    return error.what();
  }
  FAIL_CHECK("no tessera::Error was thrown");
  return "";
}
#define CHECK_SAYS(text, part) CHECK_MESSAGE((text).find(part) != std::string::npos, text)

constexpr std::uint64_t kLate = 20'000'000;  // 20 ms

}  // namespace

TEST_CASE("an event holds another stream back; one that was never recorded does not") {
  ts::CudaRuntime runtime;
  auto& gather = runtime.stream(ts::StreamKind::gather);
  auto& reduce = runtime.stream(ts::StreamKind::reduce);
  const OnDevice<float> from(values(1, 1000)), middle(std::vector<float>(1000)),
      to(std::vector<float>(1000));
  ts::CudaEvent event, never;
  runtime.wait(reduce, never);
  ts::detail::launch_delay(gather.handle, kLate);
  runtime.copy(gather, middle.data(), from.data(), 4000);
  runtime.record(event, gather);
  runtime.wait(reduce, event);
  runtime.copy(reduce, to.data(), middle.data(), 4000);
  runtime.synchronize(reduce);
  CHECK(to.host() == from.host());
}

TEST_CASE("timestamps of all streams are of one clock, which now_ns reads too") {
  ts::CudaRuntime runtime;
  auto& gather = runtime.stream(ts::StreamKind::gather);
  auto& compute = runtime.stream(ts::StreamKind::compute);
  const std::int64_t before = runtime.now_ns();
  ts::CudaMark first, second, third;
  ts::CudaEvent passed;
  runtime.mark(first, gather);
  ts::detail::launch_delay(gather.handle, kLate);
  runtime.mark(second, gather);
  runtime.record(passed, gather);
  runtime.wait(compute, passed);
  runtime.mark(third, compute);
  runtime.synchronize(compute);
  const std::int64_t after = runtime.now_ns();
  CHECK(runtime.time_ns(second) - runtime.time_ns(first) >= 19'000'000);
  CHECK(runtime.time_ns(second) - runtime.time_ns(first) < 40'000'000);
  CHECK(runtime.time_ns(third) >= runtime.time_ns(second));
  CHECK(runtime.time_ns(first) >= before - 1'000'000);
  CHECK(runtime.time_ns(third) <= after + 1'000'000);
}

TEST_CASE("known delays ahead of collectives; memory is poisoned on request") {
  ts::CudaOptions options;
  options.poison = true;
  options.gather_delay = std::chrono::milliseconds(20);
  ts::CudaRuntime runtime(options);
  auto& gather = runtime.stream(ts::StreamKind::gather);
  ts::CudaMark from, to;
  runtime.mark(from, gather);
  runtime.ahead_of_collective(gather);
  runtime.mark(to, gather);
  runtime.synchronize(gather);
  CHECK(runtime.time_ns(to) - runtime.time_ns(from) >= 19'000'000);
  void* memory = runtime.allocate(256);
  std::vector<unsigned char> bytes(256);
  runtime.read(runtime.stream(ts::StreamKind::compute), bytes.data(), memory, 256);
  CHECK(bytes == std::vector<unsigned char>(256, 0xFF));
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
  runtime.release(memory, 256);
  CHECK(runtime.allocate(0) == nullptr);
}

TEST_CASE("out of memory: what was asked for and what there is") {
  ts::CudaRuntime runtime;
  const std::string said = error_of([&] { (void)runtime.allocate(std::uint64_t{1} << 46); });
  CHECK_SAYS(said, "out of memory: cannot allocate 70368744177664 bytes on device 0");
  CHECK_SAYS(said, "free");
  runtime.check();  // and nothing of it is left behind
}

TEST_CASE("a device that is not there, and one connection for all streams: one clear sentence") {
  ts::CudaOptions options;
  options.device = 4711;
  CHECK_SAYS(error_of([&] { ts::CudaRuntime runtime(options); }), "choosing the device");
  (void)cudaGetLastError();
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  CHECK_SAYS(error_of([] { ts::CudaRuntime runtime; }), "CUDA_DEVICE_MAX_CONNECTIONS=1");
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

TEST_CASE("a launch that fails is found by check(), and is over then") {
  ts::CudaRuntime runtime;
  (void)cudaMemcpyAsync(nullptr, nullptr, 16, static_cast<cudaMemcpyKind>(77), nullptr);
  CHECK_SAYS(error_of([&] { runtime.check(); }), "an earlier call");
  runtime.check();
}
