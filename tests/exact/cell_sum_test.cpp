#include <tessera/exact/cell_sum.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

using tessera::kCell;
using tessera::NodeValue;
using tessera::NormKind;
using tessera::TreeNode;

namespace {

constexpr NormKind kKinds[] = {NormKind::l2, NormKind::l1, NormKind::inf};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

static_assert(tessera::cells_of(0) == 0);
static_assert(tessera::cells_of(64) == 1);
static_assert(tessera::cells_of(65) == 2);
static_assert(tessera::node_count(0, 0) == 0);
static_assert(tessera::node_count(0, 5) == 2);   // [0, 4), [4, 5)
static_assert(tessera::node_count(3, 13) == 4);  // [3, 4), [4, 8), [8, 12), [12, 13)

std::uint64_t bits(double x) { return tessera::detail::bits_of(x); }

/// The nodes of what one rank holds: the elements from cell a to cell b, or to the tensor's end.
void append_nodes(NormKind kind, const std::vector<float>& tensor, std::uint64_t a, std::uint64_t b,
                  std::vector<NodeValue>& nodes) {
  const std::uint64_t first = std::min<std::uint64_t>(a * kCell, tensor.size());
  const std::uint64_t last = std::min<std::uint64_t>(b * kCell, tensor.size());
  std::vector<double> out(static_cast<std::size_t>(tessera::node_count(a, b)) + 1, -7.0);
  tessera::node_values(kind, tensor.data() + first, a, last - first, out.data());
  CHECK(out.back() == -7.0);
  std::size_t i = 0;
  tessera::for_each_node(a, b, [&](const TreeNode& node) { nodes.push_back({node, out[i++]}); });
}

double evaluate(NormKind kind, const std::vector<float>& tensor,
                std::vector<std::uint64_t> cuts = {}) {
  const std::uint64_t cells = tessera::cells_of(tensor.size());
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(cells);
  std::vector<NodeValue> nodes;
  for (std::size_t i = 1; i != cuts.size(); ++i) {
    append_nodes(kind, tensor, cuts[i - 1], cuts[i], nodes);
  }
  return tessera::combine(kind, cells, nodes);
}

double fold(NormKind kind, double a, double b) {
  return kind == NormKind::inf ? std::max(a, b) : a + b;
}

/// The contract, written out level by level. No NaN.
double reference(NormKind kind, const std::vector<float>& tensor) {
  std::vector<double> level;
  for (std::size_t first = 0; first < tensor.size(); first += kCell) {
    double partial[8] = {};
    for (std::size_t i = 0; i != kCell; ++i) {
      const double x = first + i < tensor.size() ? tensor[first + i] : 0.0f;
      const double term = kind == NormKind::l2 ? x * x : std::fabs(x);
      partial[i % 8] = fold(kind, partial[i % 8], term);
    }
    for (int half = 4; half != 0; half /= 2) {
      for (int j = 0; j != half; ++j) partial[j] = fold(kind, partial[j], partial[j + half]);
    }
    level.push_back(partial[0]);
  }
  while (level.size() > 1) {
    std::vector<double> parents;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      parents.push_back(i + 1 < level.size() ? fold(kind, level[i], level[i + 1]) : level[i]);
    }
    level = parents;
  }
  return level.empty() ? 0 : level[0];
}

}  // namespace

TEST_CASE("the nodes of a range cover it with the largest subtrees") {
  values::Source source(3);
  for (int trial = 0; trial != 2000; ++trial) {
    const int shift = static_cast<int>(source.below(62));
    const std::uint64_t limit = (std::uint64_t{1} << shift) + 1;
    std::uint64_t a = source.below(limit);
    std::uint64_t b = source.below(limit);
    if (a > b) std::swap(a, b);
    std::vector<TreeNode> nodes;
    tessera::for_each_node(a, b, [&](const TreeNode& node) { nodes.push_back(node); });
    CHECK(static_cast<int>(nodes.size()) == tessera::node_count(a, b));
    CHECK(nodes.size() <= 2 * static_cast<std::size_t>(shift + 1));
    std::uint64_t at = a;
    for (std::size_t i = 0; i != nodes.size(); ++i) {
      REQUIRE(nodes[i].first_cell == at);
      REQUIRE(at % nodes[i].cells() == 0);
      at = nodes[i].end_cell();
      const bool siblings = i != 0 && nodes[i - 1].level == nodes[i].level &&
                            nodes[i - 1].first_cell % (2 * nodes[i].cells()) == 0;
      REQUIRE_FALSE(siblings);
    }
    REQUIRE(at == b);
  }
  CHECK(tessera::node_count(0, ~std::uint64_t{0}) == 64);
  CHECK(tessera::node_count(std::uint64_t{1} << 63, ~std::uint64_t{0}) == 63);
}

TEST_CASE("the value is the same for every way to cut the cells") {
  values::Source source(11);
  for (int trial = 0; trial != 300; ++trial) {
    const std::uint64_t n = 1 + source.below(trial % 10 == 0 ? 40000 : 3000);
    const std::vector<float> tensor = values::values_around(n, source.bits(), 0, 20);
    const std::uint64_t cells = tessera::cells_of(n);
    for (const NormKind kind : kKinds) {
      const double whole = evaluate(kind, tensor);
      REQUIRE(bits(whole) == bits(reference(kind, tensor)));
      for (std::uint64_t ranges = 2; ranges <= 9; ++ranges) {
        std::vector<std::uint64_t> cuts(ranges - 1);
        for (std::uint64_t& cut : cuts) cut = source.below(cells + 1);
        std::sort(cuts.begin(), cuts.end());
        REQUIRE(bits(evaluate(kind, tensor, cuts)) == bits(whole));
      }
    }
  }
}

TEST_CASE("the value agrees with a long double sum") {
  const std::vector<float> tensor = values::values_around(123457, 5, 0, 30);
  long double squares = 0;
  long double magnitudes = 0;
  long double largest = 0;
  for (const float x : tensor) {
    squares += static_cast<long double>(x) * x;
    magnitudes += std::fabs(static_cast<long double>(x));
    largest = std::max(largest, std::fabs(static_cast<long double>(x)));
  }
  // At most 7 + 3 additions in a cell and 11 levels above it, each off by 2^-53 at most.
  const double tolerance = 32 * 0x1p-53;
  CHECK(std::fabs(evaluate(NormKind::l2, tensor) / squares - 1) < tolerance);
  CHECK(std::fabs(evaluate(NormKind::l1, tensor) / magnitudes - 1) < tolerance);
  CHECK(evaluate(NormKind::inf, tensor) == static_cast<double>(largest));
}

TEST_CASE("sums of small integers are exact") {
  std::vector<float> tensor(1000);
  for (std::size_t i = 0; i != tensor.size(); ++i) {
    tensor[i] = static_cast<float>(i) * (i % 2 == 0 ? 1.0f : -1.0f);
  }
  CHECK(evaluate(NormKind::l2, tensor) == 999.0 * 1000 * 1999 / 6);
  CHECK(evaluate(NormKind::l1, tensor) == 999.0 * 1000 / 2);
  CHECK(evaluate(NormKind::inf, tensor) == 999.0);
  CHECK(evaluate(NormKind::l2, {}) == 0);
  CHECK(evaluate(NormKind::l2, {3.0f}) == 9);
}

TEST_CASE("denormals count") {
  const std::vector<float> tensor(64, 0x1p-149f);
  CHECK(evaluate(NormKind::l2, tensor) == 64 * 0x1p-298);
  CHECK(evaluate(NormKind::l1, tensor) == 64 * 0x1p-149);
  CHECK(evaluate(NormKind::inf, tensor) == 0x1p-149);
}

TEST_CASE("NaN and infinity reach the result from any place and any cut") {
  for (const NormKind kind : kKinds) {
    for (const std::size_t at : {0u, 1u, 7u, 63u, 64u, 200u, 640u, 899u}) {
      for (const std::uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu}) {
        std::vector<float> tensor = values::values_around(900, at, 0, 4);
        tensor[(at + 70) % 900] = -std::numeric_limits<float>::infinity();
        CHECK(evaluate(kind, tensor) == kInfinity);
        CHECK(evaluate(kind, tensor, {2, 5, 5, 11}) == kInfinity);
        tensor[at] = values::from_bits(nan);
        CHECK(bits(evaluate(kind, tensor)) == tessera::detail::kQuietNan64);
        CHECK(bits(evaluate(kind, tensor, {1, 3, 10, 13})) == tessera::detail::kQuietNan64);
        const std::size_t cell = at / kCell * kCell;
        const std::uint64_t count = std::min<std::uint64_t>(kCell, tensor.size() - cell);
        CHECK(bits(tessera::cell_value(kind, &tensor[cell], count)) ==
              tessera::detail::kQuietNan64);
      }
    }
  }
}

TEST_CASE("infinity minus infinity does not occur, overflow neither") {
  const std::vector<float> tensor(200, 3.0e38f);
  CHECK(evaluate(NormKind::l2, tensor) < kInfinity);
  CHECK(evaluate(NormKind::l1, tensor) < kInfinity);
}

TEST_CASE("the portable lane folds a cell to the same bits") {
  values::Source source(8);
  for (int trial = 0; trial != 500; ++trial) {
    const std::vector<float> cell = values::values_around(kCell, source.bits(), 0, 12);
    for (const NormKind kind : kKinds) {
      using Single = tessera::detail::DoubleLanes<1>;
      CHECK(bits(tessera::detail::whole_cell<Single>(kind, cell.data())) ==
            bits(tessera::cell_value(kind, cell.data(), kCell)));
    }
  }
}

TEST_CASE("nodes of bf16 are those of the same values in fp32") {
  for (const std::uint64_t n : {1u, 63u, 64u, 65u, 1000u}) {
    std::vector<tessera::bf16> half;
    std::vector<float> wide;
    for (const float value : values::values_around(n, n, 0, 8)) {
      half.push_back(tessera::to_bf16(value));
      wide.push_back(tessera::to_float(half.back()));
    }
    const auto nodes = static_cast<std::size_t>(tessera::node_count(3, 3 + tessera::cells_of(n)));
    for (const NormKind kind : kKinds) {
      std::vector<double> of_half(nodes), of_wide(nodes);
      tessera::node_values(kind, half.data(), 3, n, of_half.data());
      tessera::node_values(kind, wide.data(), 3, n, of_wide.data());
      CHECK(of_half == of_wide);
    }
  }
}

TEST_CASE("combine refuses nodes that do not cover the cells") {
  const auto message = [](std::uint64_t cells, std::vector<NodeValue> nodes) -> std::string {
    try {
      tessera::combine(NormKind::l2, cells, nodes);
    } catch (const tessera::Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message(3, {{{0, 1}, 1.0}, {{2, 0}, 1.0}}) == "");
  CHECK(message(3, {{{0, 1}, 1.0}}) == "combine: the nodes end at cell 2 of 3");
  CHECK(message(3, {{{0, 0}, 1.0}, {{2, 0}, 1.0}}) ==
        "combine: a node at cell 2 of level 0 where cell 1 of 3 is next");
  CHECK(message(3, {{{0, 0}, 1.0}, {{1, 1}, 1.0}}) ==
        "combine: a node at cell 1 of level 1 where cell 1 of 3 is next");
  CHECK(message(3, {{{0, 2}, 1.0}}) ==
        "combine: a node at cell 0 of level 2 where cell 0 of 3 is next");
  CHECK(message(1, {{{0, 64}, 1.0}}) ==
        "combine: a node at cell 0 of level 64 where cell 0 of 1 is next");
}
