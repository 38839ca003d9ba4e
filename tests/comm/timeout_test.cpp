// Time-outs at their limits: none that is not positive, and none so long that a clock overflows.
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include <tessera/comm/in_process.hpp>
#include <tessera/comm/timeout.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;

TEST_CASE("a time-out is positive, and cut where a clock would overflow") {
  CHECK(ts::detail::checked_timeout(1ms, "x") == 1ms);
  CHECK(ts::detail::checked_timeout(std::chrono::milliseconds::max(), "x") ==
        ts::detail::kLongestTimeout);
  for (const auto bad : {0ms, -1ms, std::chrono::milliseconds::min()}) {
    CHECK_THROWS_WITH_AS(ts::detail::checked_timeout(bad, "x"),
                         doctest::Contains("must be positive"), ts::Error);
  }
}

TEST_CASE("in-process ranks: the longest time-out waits, none and a negative one are refused") {
  for (const auto timeout : {std::chrono::milliseconds::max(),
                             std::chrono::milliseconds(std::chrono::hours(3'000'000))}) {
    ts::run_ranks(
        2,
        [](ts::InProcess ranks) {
          if (ranks.rank() == 1) std::this_thread::sleep_for(50ms);
          CHECK(ranks.exchange(ranks.rank()).size() == 2);
          ranks.reset();
        },
        timeout);
  }
  for (const auto bad : {0ms, -1ms}) {
    bool ran = false;
    CHECK_THROWS_WITH_AS(ts::run_ranks(
                             2, [&](ts::InProcess) { ran = true; }, bad),
                         doctest::Contains("in-process ranks"), ts::Error);
    CHECK_FALSE(ran);
    CHECK_THROWS_AS((void)ts::InProcess::group(2, bad), ts::Error);
  }
}
