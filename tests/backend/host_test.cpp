// The host runtime: memory, streams, copies, marks, delays and the poison mode.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/backend/host.hpp>
#include <tessera/error.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;

namespace {

struct AddOne {
  template <class R>
  void operator()(R& value) const {
    value = value + R::splat(1.0f);
  }
};

}  // namespace

TEST_CASE("memory is aligned, none for 0 bytes, and too much is an error with the size") {
  ts::HostRuntime host;
  CHECK(host.allocate(0) == nullptr);
  for (std::uint64_t bytes : {1, 63, 1000}) {
    void* memory = host.allocate(bytes);
    REQUIRE(memory != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    host.release(memory, bytes);
  }
  host.release(nullptr, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const std::uint64_t huge = std::uint64_t{1} << 62;
  try {
    host.release(host.allocate(huge), huge);
    FAIL_CHECK("it was allocated");
  } catch (const ts::Error& error) {
    CHECK(std::string(error.what()).find(std::to_string(huge)) != std::string::npos);
  }
#endif
}

TEST_CASE("poisoned memory is NaN in every type until it is written") {
  ts::HostRuntime host(ts::HostOptions{.poison = true});
  CHECK(host.poisons());
  auto* memory = static_cast<float*>(host.allocate(256));
  for (int i = 0; i < 64; ++i) CHECK(std::isnan(memory[i]));
  host.release(memory, 256);
  CHECK_FALSE(ts::HostRuntime().poisons());
}

TEST_CASE("read and write return when the bytes have moved; empty ones touch nothing") {
  ts::HostRuntime host;
  for (ts::StreamKind kind :
       {ts::StreamKind::compute, ts::StreamKind::gather, ts::StreamKind::reduce}) {
    ts::HostStream& stream = host.stream(kind);
    std::vector<float> a = {1, 2, 3}, b(3);
    host.write(stream, b.data(), a.data(), 12);
    CHECK(b == a);
    std::vector<float> c(3);
    host.read(stream, c.data(), b.data(), 12);
    CHECK(c == a);
    host.read(stream, nullptr, nullptr, 0);
    host.copy(stream, nullptr, nullptr, 0);
    host.fill(stream, nullptr, 1, 0);
    host.copy(stream, a.data(), a.data(), 12);  // onto itself
    host.fill(stream, b.data(), 0, 12);
    host.transform(stream, 3, AddOne{}, ts::InOut<float>{b.data()});
    host.transform(stream, 0, AddOne{}, ts::InOut<float>{nullptr});
    host.synchronize(stream);
    CHECK(b == std::vector<float>{1, 1, 1});
  }
}

TEST_CASE("streams wait for events across threads; a failed stream is found by check()") {
  ts::HostRuntime host;
  ts::HostStream& gather = host.stream(ts::StreamKind::gather);
  ts::HostStream& compute = host.stream(ts::StreamKind::compute);
  ts::HostEvent event;
  host.wait(compute, event);  // never recorded
  int value = 0;
  gather.enqueue([&] {
    std::this_thread::sleep_for(20ms);
    value = 1;
  });
  host.record(event, gather);
  host.wait(compute, event);
  CHECK(value == 1);
  gather.enqueue([] { throw ts::Error("broken wire"); });
  host.synchronize(gather);
  CHECK_THROWS_WITH_AS(host.check(), "broken wire", ts::Error);
  CHECK_THROWS_AS(host.check(), ts::Error);
  CHECK_THROWS_AS(host.read(gather, &value, &value, 0), ts::Error);
  host.reset();
  CHECK_NOTHROW(host.check());
}

TEST_CASE("marks are taken when the stream passes them; known delays lie ahead of collectives") {
  ts::HostRuntime host(ts::HostOptions{.gather_delay = 30ms, .reduce_delay = 10ms});
  const auto delay = [&](ts::StreamKind kind) {
    ts::HostStream& stream = host.stream(kind);
    ts::HostRuntime::Mark from, to;
    host.mark(from, stream);
    host.ahead_of_collective(stream);
    host.mark(to, stream);
    host.synchronize(stream);
    return static_cast<double>(host.time_ns(to) - host.time_ns(from)) / 1e6;
  };
  CHECK(delay(ts::StreamKind::gather) >= 30);
  CHECK(delay(ts::StreamKind::gather) < 60);
  CHECK(delay(ts::StreamKind::reduce) >= 10);
  CHECK(delay(ts::StreamKind::reduce) < 30);
}

TEST_CASE("norm nodes of a whole tensor are its sum of squares, on any stream") {
  ts::HostRuntime host;
  std::vector<float> values(200, 0.5f);
  const auto nodes = static_cast<std::size_t>(ts::node_count(0, 4));
  std::vector<double> out(nodes, -1);
  ts::HostStream& stream = host.stream(ts::StreamKind::reduce);
  const ts::NormRange ranges[] = {{values.data(), 0, values.size(), out.data()}, {}};
  host.norm_nodes(stream, ts::NormKind::l2, ranges, ranges);
  host.synchronize(stream);
  double sum = 0;
  for (double node : out) sum += node;
  CHECK(sum == 50);
}
