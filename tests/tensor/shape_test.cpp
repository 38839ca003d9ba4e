#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <tessera/tensor/dtype.hpp>
#include <tessera/tensor/shape.hpp>

namespace ts = tessera;

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
enum Sizes { kRows = 3, kColumns = 5 };
enum class Scoped { rows };

template <class F>
std::string message(F&& f) {
  try {
    f();
  } catch (const ts::Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

constexpr bool has(const ts::Shape& shape, std::initializer_list<std::int64_t> extents) {
  if (shape.rank() != static_cast<int>(extents.size())) return false;
  int i = 0;
  for (const std::int64_t extent : extents) {
    if (shape.extent(i++) != extent) return false;
  }
  return true;
}

// Whether a Shape of these values can be built at all; a functor, so that the answer is a type's.
template <class... I>
concept Buildable = requires(I... values) {
  ts::Shape{values...};
};

// Whether a shape with these extents is a constant expression.
template <std::int64_t... kExtents>
concept Constant = requires {
  typename std::integral_constant<std::int64_t, ts::Shape{kExtents...}.size()>;
};

}  // namespace

// Shapes and types are compile-time values.
static_assert(ts::Shape{}.rank() == 0 && ts::Shape{}.size() == 1);
static_assert(ts::Shape{7}.size() == 7);
static_assert(ts::Shape{0, 5}.size() == 0);
static_assert(ts::Shape{0, kMax, kMax}.size() == 0, "no elements, however large the rest");
static_assert(ts::Shape{kMax, 1, 1}.size() == kMax);
static_assert(ts::Shape{1, 2, 3, 4, 5, 6, 7, 8}.size() == 40320);
static_assert(has(ts::Shape{2, 3U, 4L, std::uint8_t{5}}, {2, 3, 4, 5}));
static_assert(has(ts::Shape{kRows, kColumns}, {3, 5}));
static_assert(ts::Shape{2, 3} == ts::Shape{2, 3});
static_assert(ts::Shape{2, 3} != ts::Shape{3, 2});
static_assert(ts::Shape{2} != ts::Shape{2, 1}, "equality is not that of sizes");
static_assert(ts::Shape{} != ts::Shape{1} && ts::Shape{} != ts::Shape{0});
static_assert(std::is_trivially_copyable_v<ts::Shape>);
static_assert(!Buildable<double> && !Buildable<int, float> && !Buildable<bool>);
static_assert(Constant<2, 0> && !Constant<2, -1> && Constant<kMax, 1> && !Constant<kMax, 2>);
static_assert(!Buildable<Scoped> && Buildable<Sizes, std::size_t>);

static_assert(ts::size_of(ts::DType::f32) == 4 && ts::size_of(ts::DType::bf16) == 2);
static_assert(ts::size_of(ts::DType::f64) == 8 && ts::size_of(ts::DType::opaque16) == 16);
static_assert(ts::size_of(ts::DType::f8e4m3) == 1 && ts::size_of(ts::DType::boolean) == 1);
static_assert(ts::name_of(ts::DType::f8e5m2) == "f8e5m2");
static_assert(ts::is_trainable(ts::DType::f16) && !ts::is_trainable(ts::DType::f64));
static_assert(ts::ElementTraits<float>::dtype == ts::DType::f32);
static_assert(ts::ElementTraits<std::int64_t>::dtype == ts::DType::i64);
static_assert(ts::ElementTraits<long long>::dtype == ts::DType::i64);
static_assert(ts::Element<float> && ts::Element<bool> && ts::Element<std::byte>);
static_assert(!ts::Element<const float> && !ts::Element<volatile float> && !ts::Element<float&>);
static_assert(!ts::Element<void> && !ts::Element<long double> && !ts::Element<std::uint16_t>);
static_assert(!ts::Element<std::string>);

TEST_CASE("every dtype has a size and a name of its own") {
  std::string names;
  for (int i = 0; i <= static_cast<int>(ts::DType::opaque16); ++i) {
    const auto dtype = static_cast<ts::DType>(i);
    CHECK(ts::size_of(dtype) > 0);
    CHECK(ts::name_of(dtype) != "unknown");
    const std::string name = " " + std::string(ts::name_of(dtype)) + " ";
    CHECK(names.find(name) == std::string::npos);
    names += name;
    if (ts::is_trainable(dtype)) CHECK(ts::size_of(dtype) <= 4);
  }
  CHECK(ts::size_of(static_cast<ts::DType>(200)) == 0);
  CHECK(ts::name_of(static_cast<ts::DType>(200)) == "unknown");
}

TEST_CASE("a shape is built from a span") {
  const std::int64_t values[] = {4, 0, 2};
  const ts::Shape shape{std::span<const std::int64_t>(values)};
  CHECK(has(shape, {4, 0, 2}));
  CHECK(shape.extents().size() == 3);
  CHECK(shape.extents()[2] == 2);
  CHECK(ts::Shape{std::span<const std::int64_t>()} == ts::Shape{});
}

TEST_CASE("a shape prints its extents") {
  CHECK(to_string(ts::Shape{}) == "[]");
  CHECK(to_string(ts::Shape{5}) == "[5]");
  CHECK(to_string(ts::Shape{4, 0, 1024}) == "[4, 0, 1024]");
}

TEST_CASE("a shape that cannot be is an error that names what is wrong") {
  CHECK(message([] {
          ts::Shape{2, -3};
        }) == "tessera: a shape has the extent -3 in dimension 1: extents are 0 to 2^63 - 1");
  CHECK(message([] { ts::Shape{std::numeric_limits<std::uint64_t>::max()}; }).find("dimension 0") !=
        std::string::npos);
  CHECK(message([] {
          ts::Shape{kMax, 2};
        }) == "tessera: a shape has 2^63 elements or more: [9223372036854775807, 2]");
  CHECK(message([] {
          ts::Shape{std::int64_t{1} << 32, std::int64_t{1} << 31};
        }).find("2^63") != std::string::npos);
  // One below: 2^62 elements.
  CHECK(ts::Shape{std::int64_t{1} << 31, std::int64_t{1} << 31}.size() == std::int64_t{1} << 62);
  const std::int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  CHECK(
      message([&] { ts::Shape{std::span<const std::int64_t>(nine)}; }) ==
      "tessera: a shape of 9 dimensions was asked for, at most 8 are possible: merge neighbouring "
      "dimensions");
  CHECK(message([] {
          (void)ts::Shape{1, 2}.extent(2);
        }) == "tessera: extent 2 of a shape of 2 dimensions does not exist");
  CHECK(message([] { (void)ts::Shape{1, 2}.extent(-1); }).find("extent -1") != std::string::npos);
  // A negative extent is an error beside a zero one too.
  CHECK_THROWS_AS((ts::Shape{0, -1}), ts::Error);
}
