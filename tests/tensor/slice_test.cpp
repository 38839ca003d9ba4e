#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <vector>
#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

// The whole tensor's elements, cut along a dimension by loops.
std::vector<std::uint64_t> cut(const std::vector<std::uint64_t>& extents, int dimension,
                               std::uint64_t blocks, std::uint64_t begin, std::uint64_t extent) {
  std::uint64_t outer = 1, inner = 1;
  for (int d = 0; d < dimension; ++d) outer *= extents[static_cast<std::size_t>(d)];
  for (std::size_t d = static_cast<std::size_t>(dimension) + 1; d < extents.size(); ++d) {
    inner *= extents[d];
  }
  const std::uint64_t whole = extents[static_cast<std::size_t>(dimension)] / blocks;
  std::vector<std::uint64_t> elements;
  for (std::uint64_t o = 0; o < outer; ++o) {
    for (std::uint64_t b = 0; b < blocks; ++b) {
      for (std::uint64_t i = begin; i < begin + extent; ++i) {
        for (std::uint64_t k = 0; k < inner; ++k) {
          elements.push_back(((o * blocks + b) * whole + i) * inner + k);
        }
      }
    }
  }
  return elements;
}

}  // namespace

TEST_CASE("slice: an element's place in the whole tensor") {
  struct Case {
    Shape shape;
    Slice slice;
    std::vector<std::uint64_t> whole;
  };
  const Case cases[] = {
      {Shape(3, 4), {0, 2, 7, 1}, {7, 4}},  {Shape(4, 3), {1, 5, 8, 1}, {4, 8}},
      {Shape(6, 5), {0, 1, 4, 3}, {12, 5}}, {Shape(2, 4, 3), {1, 0, 5, 2}, {2, 10, 3}},
      {Shape(5), {0, 0, 5, 1}, {5}},        {Shape(2, 3, 2), {2, 3, 5, 1}, {2, 3, 5}}};
  for (const Case& c : cases) {
    const SlicePlace place = place_of(c.slice, c.shape, "x");
    const auto want = cut(c.whole, c.slice.dimension, c.slice.blocks, c.slice.begin, place.extent);
    REQUIRE(want.size() == static_cast<std::size_t>(c.shape.size()));
    for (std::uint64_t i = 0; i < want.size(); ++i) CHECK(place.whole_index(i) == want[i]);
  }
  for (std::uint64_t i : {0u, 1u, 77u}) CHECK(SlicePlace{}.whole_index(i) == i);
}

TEST_CASE("slice: what does not fit is refused by name") {
  const Shape shape(6, 4);
  const auto refused = [&](Slice slice, const char* why) {
    CHECK_THROWS_WITH_AS(place_of(slice, shape, "w"), doctest::Contains(why), Error);
  };
  refused({2, 0, 6, 1}, "is along dimension 2");
  refused({-1, 0, 6, 1}, "is along dimension -1");
  refused({0, 1, 6, 1}, "ends at 1 + 6 of 6");
  refused({0, ~std::uint64_t{0}, 6, 1}, "of 6");
  refused({0, 0, 6, 4}, "4 blocks");
  refused({0, 0, 6, 0}, "0 blocks");
}

TEST_CASE("slice: initialisers are asked for elements of the whole tensor") {
  // Two slices of one matrix of 6 x 10 by columns, and one of rows in two blocks.
  for (const std::uint64_t begin : {0u, 4u}) {
    std::vector<float> w(6 * (begin == 0 ? 4 : 6));
    const auto columns = static_cast<std::int64_t>(w.size() / 6);
    float* p = w.data();
    Shard<Zero3<>> model(Mesh<Host>::single());
    model.add_unit("u", named("w", sliced({1, begin, 10, 1}, tensor(p, {6, columns}))));
    model.materialize([](const TensorInfo& info, std::uint64_t index) {
      CHECK(info.is_sliced);
      return static_cast<float>(index);
    });
    const std::vector<float> got = model.full(State::parameter(), "u.w");
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        CHECK(got[static_cast<std::size_t>(r * columns + c)] ==
              static_cast<float>(r * 10 + static_cast<std::int64_t>(begin) + c));
      }
    }
  }
}

TEST_CASE("slice: not for structs, and a tied tensor keeps its slice") {
  float a = 0;
  float* p = &a;
  Shard<Zero3<>> model(Mesh<Host>::single());
  model.add_unit("one", sliced({0, 0, 8, 1}, tensor(p, {4})));
  CHECK_THROWS_WITH_AS(model.add_unit("two", sliced({0, 4, 8, 1}, tensor(p, {4}))),
                       doctest::Contains("another slice"), Error);
}
