#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "conformance.hpp"
#include "tensors_for_tests.hpp"

namespace ts = tessera;
using conformance::collect;

namespace net {

struct Attention {
  std::vector<float> wq = std::vector<float>(4);
  std::vector<float> wo = std::vector<float>(5);
};
auto tensors_of(Attention& a) { return std::tie(a.wq, a.wo); }

// Modifiers, pointers and a nested struct: a tuple, since std::tie holds references only.
struct Layer {
  Attention attention;
  std::vector<float> norm = std::vector<float>(6);
  std::vector<int> positions = std::vector<int>(7);
  float* bias = nullptr;
};
auto tensors_of(Layer& l) {
  return std::tuple<Attention&, decltype(ts::named("", ts::no_decay(l.norm))),
                    decltype(ts::frozen(l.positions)), ts::PointerTensor<float>>(
      l.attention, ts::named("norm", ts::no_decay(l.norm)), ts::frozen(l.positions),
      ts::tensor(l.bias, {2, 4}));
}

struct Grouped {
  std::vector<float> a, b;
};
auto tensors_of(Grouped& g) { return std::tuple(ts::in_group(g.a, 2), ts::frozen(g.b)); }

// A struct may hand out its own array.
struct Heads {
  std::array<std::vector<float>, 3> heads{std::vector<float>(1), std::vector<float>(2), {}};
};
auto& tensors_of(Heads& h) { return h.heads; }

struct Empty {};
std::tuple<> tensors_of(Empty&) { return {}; }

// Both a tensor and a struct of tensors: it is a tensor.
struct Both {
  tensors::Matrix matrix;
};
auto tensors_of(Both& b) { return std::tie(b.matrix); }

}  // namespace net

template <>
struct tessera::TensorTraits<net::Both> {
  using element = float;
  static Shape shape(const net::Both&) { return Shape{11}; }
  static float* data(net::Both& b) { return b.matrix.values; }
};

TEST_CASE("tensors come in the order of the arguments, with default options") {
  std::vector<float> a(1);
  tensors::Matrix b{nullptr, 2, 3};
  float* c = nullptr;
  const auto all = collect(a, b, ts::tensor(c, {7}));
  REQUIRE(all.size() == 3);
  CHECK(all[0].handle.identity() == ts::identity_of(a));
  CHECK(all[1].handle.identity() == ts::identity_of(b));
  CHECK(all[2].handle.identity() == ts::identity_of(c));
  for (const auto& [handle, options] : all) {
    CHECK(options.name.empty());
    CHECK(options.trainable);
    CHECK(options.decay);
    CHECK(options.group == 0);
  }
  CHECK(collect().empty());
}

TEST_CASE("modifiers compose in any order") {
  std::vector<float> w(3);
  const auto all = collect(ts::named("w", ts::in_group(ts::no_decay(ts::frozen(w)), 3)),
                           ts::frozen(ts::no_decay(ts::in_group(ts::named("w", w), 3))),
                           ts::in_group(ts::frozen(ts::named("w", ts::no_decay(w))), 3),
                           ts::no_decay(ts::named("w", ts::frozen(ts::in_group(w, 3)))));
  REQUIRE(all.size() == 4);
  for (const auto& [handle, options] : all) {
    CHECK(handle == all[0].handle);
    CHECK(options.name == "w");
    CHECK_FALSE(options.trainable);
    CHECK_FALSE(options.decay);
    CHECK(options.group == 3);
  }
}

TEST_CASE("the outer of two equal modifiers holds") {
  std::vector<float> w(3);
  const auto all = collect(ts::named("outer", ts::named("inner", w)),
                           ts::in_group(ts::in_group(w, 1), 2), ts::frozen(ts::frozen(w)));
  CHECK(all.at(0).options.name == "outer");
  CHECK(all.at(1).options.group == 2);
  CHECK_FALSE(all.at(2).options.trainable);
  CHECK_THROWS_WITH_AS((void)ts::in_group(w, -1),
                       "tessera: in_group was given the group -1: groups count from 0", ts::Error);
}

TEST_CASE("a modifier's result and a pointer tensor may be kept and given again") {
  std::vector<float> w(3);
  float* p = nullptr;
  const auto kept = ts::named("w", w);
  auto pointer = ts::tensor(p, {2});
  const auto constant = ts::tensor(p, {2});
  const auto named_pointer = ts::named("p", pointer);
  const auto all = collect(kept, kept, pointer, constant, ts::frozen(pointer), ts::no_decay(kept),
                           named_pointer, ts::frozen(named_pointer));
  REQUIRE(all.size() == 8);
  CHECK(all[1].options.name == "w");
  CHECK(all[5].options.name == "w");
  CHECK(all[5].handle == all[0].handle);
  CHECK(all[3].handle == all[2].handle);
  CHECK(all[4].handle == all[2].handle);
  CHECK(all[6].handle == all[2].handle);
  CHECK(all[7].options.name == "p");
}

TEST_CASE("a struct lists its tensors, structs nest, and names are joined") {
  net::Layer layer;
  const auto all = collect(ts::named("layer0", layer));
  REQUIRE(all.size() == 5);
  CHECK(all[0].options.name == "layer0.0.0");
  CHECK(all[1].options.name == "layer0.0.1");
  CHECK(all[2].options.name == "layer0.norm");
  CHECK(all[3].options.name == "layer0.2");
  CHECK(all[4].options.name == "layer0.3");
  CHECK(all[0].handle.identity() == ts::identity_of(layer.attention.wq));
  CHECK(all[4].handle.identity() == ts::identity_of(layer.bias));
  CHECK(all[4].handle.shape() == ts::Shape{2, 4});
  CHECK(all[1].options.decay);
  CHECK_FALSE(all[2].options.decay);
  CHECK(all[2].options.trainable);
  CHECK_FALSE(all[3].options.trainable);
  CHECK(collect(layer).at(2).options.name == "norm");
  CHECK(collect(layer).at(0).options.name.empty());
}

TEST_CASE("what is said about a struct holds for its members, unless they say otherwise") {
  net::Attention attention;
  const auto frozen = collect(ts::in_group(ts::no_decay(ts::frozen(attention)), 1));
  REQUIRE(frozen.size() == 2);
  for (const auto& [handle, options] : frozen) {
    CHECK_FALSE(options.trainable);
    CHECK_FALSE(options.decay);
    CHECK(options.group == 1);
  }
  net::Grouped grouped;
  const auto mixed = collect(ts::in_group(grouped, 1));
  CHECK(mixed.at(0).options.group == 2);
  CHECK(mixed.at(1).options.group == 1);
}

TEST_CASE("a struct may return its own array, or nothing at all") {
  net::Heads heads;
  const auto all = collect(heads);
  REQUIRE(all.size() == 3);
  CHECK(all[1].handle.identity() == ts::identity_of(heads.heads[1]));
  CHECK(all[2].handle.shape() == ts::Shape{0});
  net::Empty empty;
  CHECK(collect(empty, ts::frozen(empty)).empty());
}

TEST_CASE("a type that is both a tensor and a struct is a tensor") {
  net::Both both;
  CHECK(collect(both).at(0).handle.shape() == ts::Shape{11});
}

TEST_CASE("a type known at run time is checked at run time") {
  tensors::Dynamic dynamic{ts::DType::i32, nullptr, 4};
  CHECK_THROWS_WITH_AS(
      collect(ts::named("ids", dynamic)),
      "tessera: tensor 'ids' of shape [4] has the type i32: only f32, bf16 and f16 "
      "tensors are trained: pass this one as ts::frozen(tensor)",
      ts::Error);
  CHECK(collect(ts::frozen(dynamic)).size() == 1);
  dynamic.dtype = ts::DType::bf16;
  CHECK(collect(dynamic).at(0).options.trainable);
}

TEST_CASE("tensors of types that are not trained are taken as frozen") {
  std::vector<double> buffer(3);
  std::vector<std::int64_t> ids(3);
  const auto all = collect(ts::frozen(buffer), ts::named("ids", ts::frozen(ids)));
  CHECK(all.at(0).handle.dtype() == ts::DType::f64);
  CHECK_FALSE(all.at(1).options.trainable);
}

TEST_CASE("element_of sees through references, pointers and modifiers") {
  std::vector<float> w(3);
  tensors::UserBf16* p = nullptr;
  static_assert(std::is_same_v<ts::element_of<std::vector<float>&>, float>);
  static_assert(std::is_same_v<ts::element_of<const std::vector<float>&>, float>);
  static_assert(std::is_same_v<ts::element_of<decltype(p)&>, tensors::UserBf16>);
  static_assert(std::is_same_v<ts::element_of<decltype(ts::tensor(p, {1}))>, tensors::UserBf16>);
  static_assert(std::is_same_v<ts::element_of<decltype(ts::named("w", ts::frozen(w)))>, float>);
  static_assert(std::is_same_v<ts::element_of<tensors::Matrix>, float>);
  CHECK(ts::identity_of(ts::named("w", ts::frozen(w))) == ts::identity_of(w));
}
