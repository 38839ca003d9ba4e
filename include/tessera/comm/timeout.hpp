// Time-outs as users give them.
#pragma once

#include <algorithm>
#include <chrono>
#include <string_view>

#include "tessera/error.hpp"

namespace tessera::detail {

/// For ever, for practical purposes; a clock's now and this do not overflow in nanoseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 10);

/// `timeout`, or the longest there is. Error unless it is positive; `of` says whose it is.
inline std::chrono::milliseconds checked_timeout(std::chrono::milliseconds timeout,
                                                 std::string_view of) {
  if (timeout.count() <= 0) {
    fail("tessera: the time-out of ", of, " is ", timeout.count(), " ms, but it must be positive");
  }
  return std::min(timeout, kLongestTimeout);
}

}  // namespace tessera::detail
