// Types that break code which assumes too much.

#include <array>
#include <cstdint>
#include <tuple>

#include "conformance.hpp"
#include "tensors_for_tests.hpp"

namespace ts = tessera;

namespace hostile {

struct Nothing {};

// No default constructor, move-only, final; & gives nonsense, the comma is a trap, and everything
// is convertible to it.
class Tensor final {
 public:
  explicit Tensor(int size) : size_(size) {}
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;
  Nothing operator&() const { return {}; }
  template <class T>
  friend Nothing operator,(const Tensor&, const T&) = delete;
  template <class T>
  friend Nothing operator,(const T&, const Tensor&) = delete;
  template <class T>
  friend Nothing operator==(const Tensor&, const T&) = delete;

  float* data_of() { return data_; }

 private:
  float* data_ = nullptr;
  int size_;

  friend struct ts::TensorTraits<Tensor>;  // nobody else sees the members
};

// Names that an unqualified call in the library would find.
template <class... T>
void visit(T&&...) = delete;
template <class... T>
void emit(T&&...) = delete;
template <class... T>
void modified(T&&...) = delete;
template <class... T>
void address_of(T&&...) = delete;
template <class... T>
void identity_of(T&&...) = delete;
template <class... T>
void visit_argument(T&&...) = delete;
template <class... T>
void visit_unmodified(T&&...) = delete;
template <class... T>
void visit_members(T&&...) = delete;
template <class... T>
void get(T&&...) = delete;
template <class... T>
void move(T&&...) = delete;
template <class... T>
void forward(T&&...) = delete;

// The elements lie in the tensor: over-aligned, neither copied nor moved.
struct alignas(256) Inline {
  Inline() = default;
  Inline(const Inline&) = delete;
  Inline& operator=(const Inline&) = delete;
  std::array<float, 4> values{};
};

// All tensors of the type share one static storage.
struct Static {
  inline static std::array<float, 4> values{};
};

struct Base {
  virtual ~Base() = default;
  virtual float* data() = 0;
};
struct Derived final : Base {
  float* data() override { return values; }
  float values[4] = {};
};

struct Model {
  Tensor a{4};
  Tensor b{5};
};
auto tensors_of(Model& model) { return std::tie(model.a, model.b); }

}  // namespace hostile

template <>
struct tessera::TensorTraits<hostile::Tensor> {
  using element = float;
  static Shape shape(const hostile::Tensor& t) { return Shape{t.size_}; }
  static float* data(hostile::Tensor& t) { return t.data_; }
  static void rebind(hostile::Tensor& t, float* memory) { t.data_ = memory; }
};
template <>
struct tessera::TensorTraits<hostile::Inline> {
  using element = float;
  static constexpr Shape shape(const hostile::Inline&) { return Shape{2, 2}; }
  static float* data(hostile::Inline& t) { return t.values.data(); }
};
template <>
struct tessera::TensorTraits<hostile::Static> {
  using element = float;
  static Shape shape(const hostile::Static&) { return Shape{4}; }
  static float* data(hostile::Static&) { return hostile::Static::values.data(); }
};
template <>
struct tessera::TensorTraits<hostile::Base> {  // an abstract class
  using element = float;
  static Shape shape(const hostile::Base&) { return Shape{4}; }
  static float* data(hostile::Base& t) { return t.data(); }
};

namespace {

struct HostileCase {
  using element = float;
  static constexpr bool rebindable = true;
  ts::Shape shape() const { return {4}; }
  hostile::Tensor& argument() { return tensor; }
  float* seen() { return tensor.data_of(); }
  float* own_memory() { return nullptr; }
  hostile::Tensor tensor{4};
};

struct InlineCase {
  using element = float;
  static constexpr bool rebindable = false;
  ts::Shape shape() const { return {2, 2}; }
  hostile::Inline& argument() { return tensor; }
  float* seen() { return tensor.values.data(); }
  float* own_memory() { return tensor.values.data(); }
  hostile::Inline tensor;
};

struct StaticCase {
  using element = float;
  static constexpr bool rebindable = false;
  ts::Shape shape() const { return {4}; }
  hostile::Static& argument() { return tensor; }
  float* seen() { return hostile::Static::values.data(); }
  float* own_memory() { return hostile::Static::values.data(); }
  hostile::Static tensor;
};

struct AbstractCase {
  using element = float;
  static constexpr bool rebindable = false;
  ts::Shape shape() const { return {4}; }
  hostile::Base& argument() { return derived; }
  float* seen() { return derived.values; }
  float* own_memory() { return derived.values; }
  hostile::Derived derived;
};

float* global_pointer = nullptr;  // static storage duration

}  // namespace

static_assert(ts::RebindableTensor<hostile::Tensor>);
static_assert(!ts::ShardableTensor<hostile::Derived>, "traits are not inherited");

TEST_CASE_TEMPLATE("a hostile tensor conforms", Case, HostileCase, InlineCase, StaticCase,
                   AbstractCase) {
  conformance::check<Case>();
}

TEST_CASE("several hostile tensors are given at once") {
  hostile::Tensor a(1);
  hostile::Tensor b(2);
  hostile::Model model;
  const auto all = conformance::collect(a, b, model, ts::no_decay(b), ts::named("m", model));
  REQUIRE(all.size() == 7);
  CHECK(all[2].handle.shape() == ts::Shape{4});
  CHECK(all[1].handle == all[4].handle);
  CHECK(all[5].options.name == "m.0");
  CHECK(all[6].handle == all[3].handle);
}

TEST_CASE("a pointer with static storage duration is a tensor") {
  const auto all = conformance::collect(ts::tensor(global_pointer, {3}));
  float slot[3] = {};
  all.at(0).handle.rebind(slot);
  CHECK(global_pointer == slot);
  all.at(0).handle.rebind(nullptr);
}
