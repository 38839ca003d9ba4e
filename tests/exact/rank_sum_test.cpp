#include <tessera/exact/rank_sum.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "values.hpp"

using tessera::bf16;

namespace {

float as_float(float x) { return x; }
float as_float(bf16 x) { return tessera::to_float(x); }
void set(float& to, float x) { to = x; }
void set(bf16& to, float x) { to = tessera::to_bf16(x); }

/// By doubles rounded to fp32 after every operation; see lanes_test.cpp.
template <class T>
std::vector<float> reference(const std::vector<std::vector<T>>& ranks, float scale, bool accumulate,
                             const std::vector<float>& out) {
  std::vector<float> result(out.size());
  for (std::size_t i = 0; i != out.size(); ++i) {
    float sum = as_float(ranks[0][i]);
    for (std::size_t rank = 1; rank != ranks.size(); ++rank) {
      sum = static_cast<float>(static_cast<double>(sum) + as_float(ranks[rank][i]));
    }
    sum = static_cast<float>(static_cast<double>(sum) * scale);
    result[i] = accumulate ? static_cast<float>(static_cast<double>(out[i]) + sum) : sum;
  }
  return result;
}

template <class T>
std::vector<std::vector<T>> contributions(int ranks, std::uint64_t n, bool any) {
  std::vector<std::vector<T>> all;
  for (int rank = 0; rank != ranks; ++rank) {
    values::Source source(static_cast<std::uint64_t>(rank) + 100 * n);
    all.emplace_back(n);
    for (T& x : all.back()) set(x, any ? source.any() : source.around(0, 4));
  }
  return all;
}

bool all_same(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i != a.size(); ++i) {
    if (!values::same(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

}  // namespace

TEST_CASE_TEMPLATE("rank_sum folds in rank order, then scales, then accumulates", T, float, bf16) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const std::uint64_t n : {0u, 1u, 3u, 16u, 31u, 64u, 65u, 130u, 1000u}) {
      for (const bool any : {false, true}) {
        for (const bool accumulate : {false, true}) {
          for (const float scale : {1.0f, 1.0f / 3, 0x1p-20f}) {
            const auto all = contributions<T>(ranks, n, any);
            std::vector<const T*> sources;
            for (const auto& one : all) sources.push_back(one.data());
            std::vector<float> out = values::values_around(n, 9, 0, 4);
            const std::vector<float> expected = reference(all, scale, accumulate, out);
            tessera::rank_sum(n, sources.data(), ranks, scale, accumulate, out.data());
            REQUIRE(all_same(out, expected));
          }
        }
      }
    }
  }
}

TEST_CASE("a bf16 output is the fp32 result, accumulated with what is there, rounded once") {
  for (const int ranks : {1, 3, 8}) {
    for (const std::uint64_t n : {1u, 31u, 64u, 130u, 1000u}) {
      for (const bool accumulate : {false, true}) {
        const auto all = contributions<bf16>(ranks, n, accumulate);
        std::vector<const bf16*> sources;
        for (const auto& one : all) sources.push_back(one.data());
        const std::vector<bf16> before = contributions<bf16>(1, n + 1, false)[0];
        std::vector<float> wide;
        for (std::uint64_t i = 0; i != n; ++i) wide.push_back(as_float(before[i]));
        const std::vector<float> expected = reference(all, 1.0f / 3, accumulate, wide);
        std::vector<bf16> out = before;
        tessera::rank_sum(n, sources.data(), ranks, 1.0f / 3, accumulate, out.data());
        for (std::uint64_t i = 0; i != n; ++i) REQUIRE(out[i] == tessera::to_bf16(expected[i]));
        REQUIRE(out[n] == before[n]);
      }
    }
  }
}

TEST_CASE("the output of rank_sum may be a source") {
  for (const std::uint64_t n : {5u, 64u, 77u}) {
    for (std::size_t which = 0; which != 3; ++which) {
      for (const bool accumulate : {false, true}) {
        auto all = contributions<float>(3, n, false);
        const float* const sources[] = {all[0].data(), all[1].data(), all[2].data()};
        const std::vector<float> expected = reference(all, 0.3f, accumulate, all[which]);
        tessera::rank_sum(n, sources, 3, 0.3f, accumulate, all[which].data());
        REQUIRE(all_same(all[which], expected));
      }
    }
  }
}

TEST_CASE("the order of ranks is the order of additions") {
  const float big = 0x1p24f;
  const float one = 1.0f;
  const float minus = -0x1p24f;
  const float* const lost[] = {&big, &one, &minus};  // 2^24 + 1 rounds to 2^24
  const float* const kept[] = {&big, &minus, &one};
  float out = 0;
  tessera::rank_sum(1, lost, 3, 1.0f, false, &out);
  CHECK(out == 0.0f);
  tessera::rank_sum(1, kept, 3, 1.0f, false, &out);
  CHECK(out == 1.0f);
}
