#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>
#include <tessera/exact/bf16.hpp>

#include "conformance.hpp"
#include "tensors_for_tests.hpp"

namespace ts = tessera;
using tensors::MiniMapping;

namespace {

template <class E>
struct SpanCase {
  using element = E;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {6}; }
  std::span<E>& argument() { return span; }
  E* seen() { return span.data(); }
  E* own_memory() { return memory.get(); }
  std::unique_ptr<E[]> memory = std::make_unique<E[]>(6);
  std::span<E> span{memory.get(), 6};
};

struct FixedSpanCase {
  using element = double;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {4}; }
  std::span<double, 4>& argument() { return span; }
  double* seen() { return span.data(); }
  double* own_memory() { return memory.data(); }
  std::array<double, 4> memory{};
  std::span<double, 4> span{memory};
};

template <class E>
struct VectorCase {
  using element = E;
  static constexpr bool rebindable = false;
  ts::Shape shape() const { return {5}; }
  std::vector<E>& argument() { return vector; }
  E* seen() { return vector.data(); }
  E* own_memory() { return vector.data(); }
  std::vector<E> vector = std::vector<E>(5);
};

template <class E>
struct PointerCase {
  using element = E;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {2, 3}; }
  ts::PointerTensor<E> argument() { return ts::tensor(pointer, {2, 3}); }
  E* seen() { return pointer; }
  E* own_memory() { return nullptr; }
  E* pointer = nullptr;
};

template <class E>
struct MdspanCase {
  using element = E;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {2, 3, 4}; }
  tensors::MiniMdspan<E, 3>& argument() { return view; }
  E* seen() { return view.data_handle(); }
  E* own_memory() { return nullptr; }
  tensors::MiniMdspan<E, 3> view{nullptr, MiniMapping<3>::right({2, 3, 4})};
};

struct AccessorCase {
  using element = float;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {2, 2}; }
  tensors::AccessorMdspan<float, 2>& argument() { return view; }
  float* seen() {
    CHECK(view.accessor().tag == 42);
    return view.data_handle();
  }
  float* own_memory() { return nullptr; }
  tensors::AccessorMdspan<float, 2> view{nullptr, MiniMapping<2>::right({2, 2}),
                                         tensors::Accessor(42)};
};

struct FixedViewCase {
  using element = float;
  static constexpr bool rebindable = false;
  ts::Shape shape() const { return {2, 2}; }
  tensors::FixedView<float>& argument() { return view; }
  float* seen() { return view.data_handle(); }
  float* own_memory() { return memory.data(); }
  std::array<float, 4> memory{};
  tensors::FixedView<float> view{memory.data(), MiniMapping<2>::right({2, 2})};
};

struct MatrixCase {
  using element = float;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {3, 2}; }
  tensors::Matrix& argument() { return matrix; }
  float* seen() { return matrix.values; }
  float* own_memory() { return nullptr; }
  tensors::Matrix matrix{nullptr, 3, 2};
};

}  // namespace

static_assert(ts::RebindableTensor<std::span<float>> && ts::RebindableTensor<std::span<float, 4>>);
static_assert(ts::ShardableTensor<std::vector<float>> && !ts::RebindableTensor<std::vector<float>>);
static_assert(!ts::ShardableTensor<std::vector<bool>>);
static_assert(!ts::ShardableTensor<std::span<const float>>);
static_assert(!ts::ShardableTensor<std::vector<std::vector<float>>>);
static_assert(!ts::ShardableTensor<const std::vector<float>> && !ts::ShardableTensor<int>);
static_assert(!ts::ShardableTensor<float*> && !ts::ShardableTensor<void>);
static_assert(ts::RebindableTensor<ts::PointerTensor<float>>);
static_assert(!ts::ShardableTensor<ts::PointerTensor<const float>>);
static_assert(!ts::detail::MdspanLike<std::span<float>> && !ts::detail::MdspanLike<float>);

TEST_CASE_TEMPLATE("an adapter conforms", Case, SpanCase<float>, SpanCase<std::int32_t>,
                   SpanCase<tensors::UserBf16>, SpanCase<bool>, FixedSpanCase, VectorCase<float>,
                   VectorCase<ts::bf16>, VectorCase<std::uint8_t>, PointerCase<float>,
                   PointerCase<ts::bf16>, PointerCase<std::int64_t>, MdspanCase<float>,
                   MdspanCase<ts::bf16>, AccessorCase, FixedViewCase, MatrixCase) {
  conformance::check<Case>();
}

TEST_CASE("a span outside a lease is null and keeps its size") {
  std::vector<float> slot(8);
  std::span<float> span(slot);
  const auto handle = ts::TensorHandle::of(span);
  handle.rebind(nullptr);
  CHECK(span.data() == nullptr);
  CHECK(span.size() == 8);
  span = {};  // the user forgot it
  CHECK_THROWS_WITH_AS(handle.require_same_size("layer0.w"),
                       "tessera: tensor 'layer0.w' was registered with shape [8] and now has shape "
                       "[0]: a tensor keeps its size until the Shard ends",
                       ts::Error);
  handle.rebind(slot.data());
  CHECK(span.data() == slot.data());
  CHECK(span.size() == 8);
}

TEST_CASE("a vector is followed when it moves, and refused when it changed its size") {
  std::vector<float> vector(3);
  const auto handle = ts::TensorHandle::of(vector);
  vector.reserve(1000);
  CHECK(handle.data() == vector.data());
  CHECK_NOTHROW(handle.require_same_size("w"));
  vector.push_back(1);
  CHECK_THROWS_AS(handle.require_same_size("w"), ts::Error);
  CHECK(handle.shape() == ts::Shape{3});
  CHECK_THROWS_WITH_AS(handle.rebind(vector.data()),
                       "tessera: a tensor of shape [3] and type f32 cannot be pointed at other "
                       "memory: its TensorTraits has no rebind",
                       ts::Error);
}

TEST_CASE("a tensor of no elements is always pointed at null") {
  float slot = 0;
  float* pointer = nullptr;
  std::span<float> span;
  ts::TensorHandle::of(span).rebind(&slot);
  CHECK(span.data() == nullptr);
  auto tensor = ts::tensor(pointer, {0, 7});
  ts::TensorHandle::of(tensor).rebind(&slot);
  CHECK(pointer == nullptr);
}

TEST_CASE("pointer tensors of one variable are tied, of equal pointers not") {
  float* a = nullptr;
  float* b = nullptr;
  auto first = ts::tensor(a, {4});
  auto second = ts::tensor(a, {2, 2});
  auto third = ts::tensor(b, {4});
  CHECK(ts::TensorHandle::of(first) == ts::TensorHandle::of(second));
  CHECK_FALSE(ts::TensorHandle::of(first) == ts::TensorHandle::of(third));
  CHECK(ts::identity_of(a) == ts::identity_of(first));
  CHECK(ts::identity_of(ts::named("w", ts::tensor(b, {4}))) == ts::identity_of(b));
  // The handle does not need the wrapper any more.
  ts::TensorHandle handle = ts::TensorHandle::of(first);
  first = third;
  float slot[4] = {};
  handle.rebind(slot);
  CHECK(a == slot);
  CHECK(b == nullptr);
  CHECK(handle.data() == slot);
}

TEST_CASE("a view with holes or with shared elements is not contiguous") {
  using View = tensors::MiniMdspan<float, 2>;
  View holes(nullptr, MiniMapping<2>::right({2, 3}, 1));
  CHECK_FALSE(ts::TensorHandle::of(holes).contiguous());
  MiniMapping<2> broadcast{{{2, 1}}, {0, 0}};
  View shared(nullptr, broadcast);
  CHECK_FALSE(ts::TensorHandle::of(shared).contiguous());
  // Column-major is contiguous: elements are taken as they lie.
  View column_major(nullptr, MiniMapping<2>{{{2, 3}}, {1, 2}});
  CHECK(ts::TensorHandle::of(column_major).contiguous());
  CHECK(ts::TensorHandle::of(column_major).shape() == ts::Shape{2, 3});
}

TEST_CASE("a view of no dimensions is one element, and one of nine is refused") {
  tensors::MiniMdspan<float, 0> scalar(nullptr, MiniMapping<0>{});
  CHECK(ts::TensorHandle::of(scalar).shape() == ts::Shape{});
  tensors::MiniMdspan<float, 9> nine(nullptr, MiniMapping<9>{});
  CHECK_THROWS_WITH_AS((void)ts::TensorHandle::of(nine),
                       "tessera: an mdspan has 9 dimensions, at most 8 are possible", ts::Error);
}

TEST_CASE("a type may name its element type at run time") {
  tensors::Dynamic dynamic{ts::DType::bf16, nullptr, 12};
  const auto handle = ts::TensorHandle::of(dynamic);
  CHECK(handle.dtype() == ts::DType::bf16);
  CHECK(handle.bytes() == 24);
  std::uint16_t slot[12] = {};
  handle.rebind(slot);
  CHECK(dynamic.memory == slot);
  static_assert(std::is_void_v<ts::element_of<tensors::Dynamic&>>);
}

TEST_CASE("a tensor of 2^63 bytes is refused before anything is computed with it") {
  float* pointer = nullptr;
  auto tensor = ts::tensor(pointer, {std::int64_t{1} << 61});
  CHECK_THROWS_WITH_AS((void)ts::TensorHandle::of(tensor),
                       "tessera: a tensor of shape [2305843009213693952] and type f32 has 2^63 "
                       "bytes or more",
                       ts::Error);
}
