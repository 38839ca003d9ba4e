// Random programs over random units, policies and options, against the unsharded reference.
//
// TESSERA_PROPERTY_CASES (2000): how many. TESSERA_PROPERTY_SEED: of all of them.
// TESSERA_PROPERTY_CASE: only the case that a failure printed, as seed:index:path.
// TESSERA_PROPERTY_SHRINK (30): seconds for making a failing case smaller.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "property/coverage.hpp"
#include "property/run_case.hpp"
#include "property/shrink.hpp"

namespace {

using namespace property;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void report(std::uint64_t seed, std::uint64_t index, const Case& c, const std::string& failure) {
  const std::chrono::seconds limit(setting("TESSERA_PROPERTY_SHRINK", 30));
  const Shrunk shrunk = shrink(c, failure, limit, run_case);
  std::printf(
      "property: case %llu of seed %llu failed: %s\n  shrunk: %s\n  %s\n"
      "  again: TESSERA_PROPERTY_CASE=%llu:%llu:%s\n",
      static_cast<unsigned long long>(index), static_cast<unsigned long long>(seed),
      failure.c_str(), shrunk.failure.c_str(), to_string(shrunk.smallest).c_str(),
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(index),
      shrunk.path.c_str());
  std::fflush(stdout);
}

TEST_CASE("random cases equal the unsharded reference") {
  if (const char* only = std::getenv("TESSERA_PROPERTY_CASE")) {
    const std::string text = only;
    const std::size_t first = text.find(':');
    const std::size_t second = text.find(':', first + 1);
    REQUIRE(second != std::string::npos);
    const Case c = follow(make_case(std::stoull(text), std::stoull(text.substr(first + 1))),
                          text.substr(second + 1));
    const std::string failure = run_case(c);
    std::printf("property: %s\n  %s\n", to_string(c).c_str(), failure.c_str());
    CHECK(failure == "");
    return;
  }

  const std::uint64_t cases = setting("TESSERA_PROPERTY_CASES", 2000);
  const std::uint64_t seed = setting("TESSERA_PROPERTY_SEED", 20250601);
  std::printf("property: seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Coverage coverage;
  for (std::uint64_t index = 0; index < cases; ++index) {
    const Case c = make_case(seed, index);
    const std::string failure = run_case(c);
    if (!failure.empty()) {
      report(seed, index, c, failure);
      FAIL(failure);
    }
    coverage.add(c);
  }
  coverage.print();
  const std::uint64_t least = std::min<std::uint64_t>(100, cases / 20);
  for (const char* what : {"zero-size", "tied", "frozen", "more ranks than elements"}) {
    CAPTURE(what);
    CHECK(coverage.of(what) >= least);
  }
}

}  // namespace
