#include <tessera/exact/digest.hpp>

#include <cstdint>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

using tessera::bf16;
using tessera::Digest;

namespace {

template <class T>
std::uint64_t digest(const std::vector<T>& data) {
  Digest result;
  result.update(data.data(), data.size());
  return result.value();
}

}  // namespace

TEST_CASE("the digest does not depend on how the sequence is cut") {
  const std::vector<float> data = values::any_values(1000, 1);
  values::Source source(2);
  for (int trial = 0; trial != 50; ++trial) {
    Digest pieces;
    for (std::uint64_t at = 0; at != data.size();) {
      const std::uint64_t n = 1 + source.below(data.size() - at);
      pieces.update(data.data() + at, n);
      at += n;
    }
    CHECK(pieces.value() == digest(data));
    CHECK(pieces.count() == 1000);
  }
}

TEST_CASE("pieces hashed apart merge in any order") {
  const std::vector<float> data = values::any_values(1000, 1);
  Digest last = Digest::starting_at(700);
  last.update(data.data() + 700, 300);
  Digest middle = Digest::starting_at(64);
  middle.update(data.data() + 64, 636);
  Digest first;
  first.update(data.data(), 64);
  last.merge(first);
  last.merge(middle);
  CHECK(last.value() == digest(data));
}

TEST_CASE("one bit flipped changes the digest, each to a value of its own") {
  const std::vector<float> data = values::values_around(100, 3, 0, 20);
  std::set<std::uint64_t> seen{digest(data)};
  for (std::size_t i = 0; i != data.size(); ++i) {
    for (int bit = 0; bit != 32; ++bit) {
      std::vector<float> changed = data;
      changed[i] = values::from_bits(tessera::detail::bits_of(data[i]) ^ (1u << bit));
      if (values::is_nan(changed[i])) continue;
      CHECK(seen.insert(digest(changed)).second);
    }
  }
}

TEST_CASE("position, length and type matter") {
  CHECK(digest<float>({1, 2}) != digest<float>({2, 1}));
  CHECK(digest<float>({0}) != digest<float>({0, 0}));
  CHECK(digest<float>({}) != digest<float>({0}));
  CHECK(digest<float>({0.0f}) != digest<float>({-0.0f}));
  CHECK(digest<bf16>({{0x3f80}}) != digest<float>({1.0f}));
  CHECK(digest<unsigned char>({1, 2}) != digest<unsigned char>({2, 1}));
  // The same value 2^32 positions on.
  const float one = 1;
  Digest near = Digest::starting_at(5);
  Digest far = Digest::starting_at((std::uint64_t{1} << 32) + 5);
  near.update(&one, 1);
  far.update(&one, 1);
  CHECK_FALSE(near == far);
}

TEST_CASE("all NaNs count as one") {
  const auto nan = [](std::uint32_t bits) { return values::from_bits(bits); };
  CHECK(digest<float>({1, nan(0x7fc00000)}) == digest<float>({1, nan(0xffc00001)}));
  CHECK(digest<float>({1, nan(0x7fc00000)}) == digest<float>({1, nan(0x7f800001)}));
  CHECK(digest<float>({nan(0x7fc00000), 1}) != digest<float>({1, nan(0x7fc00000)}));
  CHECK(digest<bf16>({{0x7fc0}}) == digest<bf16>({{0xff81}}));
  CHECK(digest<bf16>({{0x7fc0}}) != digest<bf16>({{0x7f80}}));
}

TEST_CASE("the digest is pinned, since it goes into files and logs") {
  CHECK(Digest().value() == 0xa706dd2f4d197e6fu);
  CHECK(digest<float>({1, 2, 3}) == 0x6933faa16e1a1418u);
}
