#include <tessera/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <tessera/tensor/shape.hpp>

namespace ts = tessera;

static_assert(std::is_base_of_v<std::runtime_error, ts::Error>);
static_assert(std::is_nothrow_copy_constructible_v<ts::CommunicatorError>);

TEST_CASE("parts of every kind are concatenated") {
  const std::string text = "wq";
  CHECK(ts::detail::concat() == "");
  CHECK(ts::detail::concat("a ", text, ' ', std::string_view("b")) == "a wq b");
  CHECK(ts::detail::concat(-1, ' ', std::uint64_t{18446744073709551615ULL}, ' ', std::int8_t{-5},
                           ' ', std::uint8_t{65}) == "-1 18446744073709551615 -5 65");
  CHECK(ts::detail::concat(true, ' ', false) == "true false");
  CHECK(ts::detail::concat(0.5F, ' ', 1e-9, ' ', -1e300) == "0.5 1e-09 -1e+300");
  CHECK(ts::detail::concat(ts::Shape{2, 3}) == "[2, 3]");
}

TEST_CASE("fail throws an Error with the sentence") {
  CHECK_THROWS_WITH_AS(ts::detail::fail("unit '", "layer0", "' has ", 3, " tensors"),
                       "unit 'layer0' has 3 tensors", ts::Error);
}

TEST_CASE("a CommunicatorError names rank, unit and collective") {
  const ts::CommunicatorError error(3, "layer0", "all_gather", "timed out after 30 s");
  CHECK(std::string(error.what()) == "rank 3, all_gather of unit 'layer0': timed out after 30 s");
  CHECK(error.rank() == 3);
  CHECK(std::string(ts::CommunicatorError(0, "", "reset", "aborted").what()) ==
        "rank 0, reset: aborted");
  CHECK(std::string(ts::CommunicatorError(-1, "", "", "aborted").what()) ==
        "an unknown rank: aborted");
}
