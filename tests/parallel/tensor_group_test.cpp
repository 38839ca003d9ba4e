#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>
#include <tessera/tessera.hpp>

#include "ranks.hpp"

using namespace tessera;
using namespace parallel_tests;
using Kind = LargestCall::Kind;

namespace {

constexpr int kMostRanks = 4;

/// The sum in rank order, as the library promises it.
Floats rank_order_sum(int ranks, const std::vector<Floats>& each) {
  Floats sum = each[0];
  for (int r = 1; r < ranks; ++r) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += each[static_cast<std::size_t>(r)][i];
  }
  return sum;
}

std::vector<Floats> all_values(int ranks, std::size_t n) {
  std::vector<Floats> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(random_floats(n, static_cast<std::uint32_t>(100 * n) + static_cast<unsigned>(r)));
  }
  return all;
}

std::vector<bf16> rounded(const Floats& values) {
  std::vector<bf16> result;
  for (const float value : values) result.push_back(to_bf16(value));
  return result;
}

struct Size {
  std::uint64_t rows, columns;
};
// Even and uneven over 1 to 4 ranks, fewer rows than ranks, whole granules and not.
constexpr Size kSizes[] = {{12, 64}, {12, 7}, {13, 64}, {2, 5}, {1, 1}, {5, 129}, {24, 32}, {0, 8}};

}  // namespace

TEST_CASE("tensor group: a sum is that of the ranks in their order, the same bits everywhere") {
  for (int size = 1; size <= kMostRanks; ++size) {
    on_tensor_axis(size, [&](Mesh<Host>& mesh) {
      TensorGroup<Host> group(mesh, {{Kind::sum, 1, 1000}, {Kind::sum, 1, 1000, DType::bf16}});
      REQUIRE(group.size() == size);
      for (const std::size_t n : {0u, 1u, 63u, 64u, 256u, 300u, 1000u}) {
        const std::vector<Floats> all = all_values(size, n);
        Floats values = all[static_cast<std::size_t>(group.rank())];
        group.sum(values.data(), n);
        CHECK(values == rank_order_sum(size, all));

        // In bf16: summed in fp32, rounded once.
        std::vector<Floats> wide;
        for (const Floats& each : all) {
          wide.emplace_back();
          for (const bf16 value : rounded(each)) wide.back().push_back(to_float(value));
        }
        std::vector<bf16> half = rounded(all[static_cast<std::size_t>(group.rank())]);
        group.sum(half.data(), n);
        CHECK(half == rounded(rank_order_sum(size, wide)));
      }
    });
  }
}

TEST_CASE("tensor group: rows are summed to their owners and gathered again, padded or in place") {
  for (int size = 1; size <= kMostRanks; ++size) {
    on_tensor_axis(size, [&](Mesh<Host>& mesh) {
      std::vector<LargestCall> largest;
      for (const Size& s : kSizes) largest.push_back({Kind::rows, s.rows, s.columns});
      TensorGroup<Host> group(mesh, largest);
      for (const Size& s : kSizes) {
        const std::uint64_t rows = s.rows, columns = s.columns;
        CAPTURE(rows);
        CAPTURE(columns);
        const std::vector<Floats> all = all_values(size, rows * columns);
        const Floats sum = rank_order_sum(size, all);
        const Share mine = group.share(rows);
        const Floats expected = rows_of(sum, columns, mine);

        Floats partial = all[static_cast<std::size_t>(group.rank())];
        Floats own(mine.size * columns, std::numeric_limits<float>::quiet_NaN());
        group.sum_rows(rows, columns, partial.data(), own.data());
        CHECK(own == expected);

        Floats in_place = all[static_cast<std::size_t>(group.rank())];
        float* const part = in_place.data() + mine.begin * columns;
        group.sum_rows(rows, columns, in_place.data(), part);
        CHECK(Floats(part, part + mine.size * columns) == expected);

        Floats gathered(rows * columns, std::numeric_limits<float>::quiet_NaN());
        group.gather_rows(rows, columns, own.data(), gathered.data());
        CHECK(gathered == sum);
        group.gather_rows(rows, columns, part, in_place.data());
        CHECK(in_place == sum);
      }
    });
  }
}

TEST_CASE("tensor group: columns are gathered into whole rows, in bf16 too") {
  for (int size = 1; size <= kMostRanks; ++size) {
    on_tensor_axis(size, [&](Mesh<Host>& mesh) {
      std::vector<LargestCall> largest;
      for (const Size& s : kSizes) largest.push_back({Kind::columns, s.columns, s.rows});
      TensorGroup<Host> group(mesh, largest);
      for (const Size& s : kSizes) {
        const std::uint64_t rows = s.columns, columns = s.rows;
        const Floats whole = random_floats(rows * columns, 5);
        const Floats own = columns_of(whole, columns, group.share(columns));
        Floats got(rows * columns);
        group.gather_columns(rows, columns, own.data(), got.data());
        CHECK(got == whole);
        const std::vector<bf16> half = rounded(own);
        std::vector<bf16> got_half(rows * columns);
        group.gather_columns(rows, columns, half.data(), got_half.data());
        CHECK(got_half == rounded(whole));
      }
    });
  }
}

TEST_CASE("tensor group: a rank by itself sends nothing; several do, on a channel of their own") {
  for (int size = 1; size <= 2; ++size) {
    on_tensor_axis(size, [&](Mesh<Host>& mesh) {
      TensorGroup<Host> group(mesh, {{Kind::sum, 1, 256}});
      Floats values(256, 1.0f);
      group.sum(values.data(), values.size());
      const std::uint64_t expected = size - 1;
      CHECK(group.counts()[CollectiveKind::reduce_scatter].count == expected);
      CHECK(group.counts()[CollectiveKind::all_gather].count == expected);
      // Half of the values each way: what a rank receives of 256.
      CHECK(group.counts()[CollectiveKind::all_gather].bytes == expected * 128 * sizeof(float));
      CHECK((mesh.tensor().counts() == CollectiveCounts{}));
    });
  }
}

TEST_CASE("tensor group: a call that was not announced is refused") {
  on_tensor_axis(3, [](Mesh<Host>& mesh) {
    TensorGroup<Host> group(mesh, {{Kind::rows, 4, 16}});
    Floats matrix(1000), own(1000);
    CHECK_THROWS_WITH_AS(group.sum_rows(10, 100, matrix.data(), own.data()),
                         doctest::Contains("larger than its constructor was told"), Error);
    CHECK_THROWS_AS(group.gather_rows(10, 100, own.data(), matrix.data()), Error);
    CHECK_THROWS_AS(group.gather_columns(10, 100, own.data(), matrix.data()), Error);
    group.gather_rows(4, 16, own.data(), matrix.data());  // and changes nothing
  });
}
