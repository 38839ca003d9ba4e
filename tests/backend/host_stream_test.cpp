// In-order streams and events on the host.
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/backend/host_stream.hpp>

using namespace std::chrono_literals;
using tessera::HostEvent;
using tessera::HostStream;

namespace {

void record(HostEvent& event, HostStream& stream) {
  const std::uint64_t number = event.announce();
  stream.enqueue_always([&event, number] { event.reach(number); });
}
void wait(HostStream& stream, HostEvent& event) {
  const std::uint64_t number = event.announced();
  stream.enqueue_always([&event, number] { event.wait_for(number); });
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("work on a stream runs in order, beside the caller, and synchronize waits for all") {
  HostStream stream(HostStream::Where::worker);
  std::vector<int> order;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    stream.enqueue([&order, i] {
      std::this_thread::sleep_for(20ms);
      order.push_back(i);
    });
  }
  CHECK(seconds_since(begin) < 0.05);  // enqueueing does not wait
  stream.synchronize();
  CHECK(seconds_since(begin) >= 0.1);
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("the compute stream is the caller's thread") {
  HostStream stream(HostStream::Where::caller);
  std::thread::id where;
  stream.enqueue([&] { where = std::this_thread::get_id(); });
  CHECK(where == std::this_thread::get_id());
  CHECK_THROWS_AS(stream.enqueue([] { throw std::runtime_error("x"); }), std::runtime_error);
  CHECK_NOTHROW(stream.check());
}

TEST_CASE("B054: two streams run beside each other") {
  HostStream a(HostStream::Where::worker), b(HostStream::Where::worker);
  const auto begin = std::chrono::steady_clock::now();
  for (HostStream* stream : {&a, &b}) {
    stream->enqueue([] { std::this_thread::sleep_for(100ms); });
  }
  a.synchronize();
  b.synchronize();
  CHECK(seconds_since(begin) < 0.19);
}

TEST_CASE("an event that was never recorded holds nothing back") {
  HostEvent event;
  HostStream stream(HostStream::Where::worker), caller(HostStream::Where::caller);
  bool reached = false;
  wait(stream, event);
  stream.enqueue([&] { reached = true; });
  stream.synchronize();
  CHECK(reached);
  wait(caller, event);
}

TEST_CASE("a wait means the latest record that was enqueued before it; events are reusable") {
  HostEvent event;
  HostStream producer(HostStream::Where::worker), consumer(HostStream::Where::worker);
  std::atomic<int> value{0};
  for (int i = 1; i <= 100; ++i) {
    producer.enqueue([&value, i] {
      if (i % 10 == 0) std::this_thread::sleep_for(1ms);
      value = i;
    });
    record(event, producer);
    wait(consumer, event);
    consumer.enqueue([&value, i] { CHECK(value >= i); });
  }
  consumer.synchronize();
  // A record after the wait does not hold the wait back.
  wait(consumer, event);
  producer.enqueue([] { std::this_thread::sleep_for(100ms); });
  record(event, producer);
  const auto begin = std::chrono::steady_clock::now();
  consumer.synchronize();
  CHECK(seconds_since(begin) < 0.09);
}

TEST_CASE("a record that a faster stream reached does not release waits for an earlier one") {
  tessera::HostEvent event;
  const std::uint64_t first = event.announce();
  const std::uint64_t second = event.announce();
  event.reach(second);
  event.wait_for(second);
  std::atomic<bool> released = false;
  std::thread waiting([&] {
    event.wait_for(first);
    released = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(released);
  event.reach(first);
  waiting.join();
  CHECK(released);
}

TEST_CASE("an exception surfaces at the next check, work is skipped, events are still reached") {
  HostEvent event;
  HostStream stream(HostStream::Where::worker), other(HostStream::Where::worker);
  std::atomic<bool> ran{false};
  stream.enqueue([] { throw std::runtime_error("first"); });
  stream.enqueue([] { throw std::runtime_error("second"); });
  stream.enqueue([&] { ran = true; });
  record(event, stream);
  wait(other, event);
  other.synchronize();  // nobody waits for ever
  CHECK_FALSE(ran);
  for (int again = 0; again < 2; ++again) {
    try {
      stream.check();
      FAIL_CHECK("nothing was thrown");
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "first");
    }
  }
  CHECK_NOTHROW(other.check());
  stream.reset();
  CHECK_NOTHROW(stream.check());
  stream.enqueue([&] { ran = true; });
  stream.synchronize();
  CHECK(ran);
}

TEST_CASE("the destructor runs what was enqueued, and releases what the closures hold") {
  auto held = std::make_shared<int>(0);
  {
    HostStream stream(HostStream::Where::worker);
    for (int i = 0; i < 10; ++i) stream.enqueue([held] { ++*held; });
    stream.enqueue([held] { throw std::runtime_error("x"); });
    stream.enqueue([held] { ++*held; });  // skipped
  }
  CHECK(*held == 10);
  CHECK(held.use_count() == 1);
  HostStream stream(HostStream::Where::worker);
  stream.enqueue([held] {});
  stream.synchronize();
  CHECK(held.use_count() == 1);  // released before the stream reads as idle
}

TEST_CASE("waiting does not spin: a waiting stream takes no processor time") {
  HostEvent event;
  HostStream producer(HostStream::Where::worker), consumer(HostStream::Where::worker);
  producer.enqueue([] { std::this_thread::sleep_for(300ms); });
  record(event, producer);
  wait(consumer, event);
  const std::clock_t begin = std::clock();
  consumer.synchronize();
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 0.1);
}

TEST_CASE("jitter delays work at random, in order, by at most what was asked for") {
  HostStream stream(HostStream::Where::worker, 2ms, 7);
  std::vector<int> order;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  const double took = seconds_since(begin);
  CHECK(took > 0.015);
  CHECK(took < 0.5);
  for (int i = 0; i < 50; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}
