#include <doctest/doctest.h>

#include <cstdint>
#include <tessera/tessera.hpp>

using namespace tessera;

TEST_CASE("shares follow one another, make up the whole, and differ by one at the most") {
  for (std::uint64_t whole = 0; whole <= 40; ++whole) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::uint64_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const Share share = share_of(whole, ranks, r);
        CHECK(share.begin == at);
        at = share.end();
        CHECK(share.size <= largest_share(whole, ranks));
        CHECK(share.size + 1 >= largest_share(whole, ranks));
        CHECK(share_of(whole + 1, ranks, r).size >= share.size);
        for (std::uint64_t i = 0; i < whole; ++i) {
          CHECK(share.has(i) == (i >= share.begin && i < share.end()));
        }
      }
      CHECK(at == whole);
    }
  }
  CHECK(share_of(10, 3, 0) == Share{0, 4});
  CHECK(share_of(10, 3, 2) == Share{7, 3});
  CHECK(share_of(2, 4, 3) == Share{2, 0});
  CHECK_FALSE(share_of(10, 3, 1).has(static_cast<std::uint64_t>(-1)));
}
