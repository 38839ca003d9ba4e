#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>
#include <tessera/tessera.hpp>

#include "ranks.hpp"

using namespace tessera;
using namespace parallel_tests;
using Kind = LargestCall::Kind;

namespace {

using Tokens = std::vector<std::int32_t>;
constexpr std::size_t kWidth = 6;
constexpr std::size_t kVocabularies[] = {1, 3, 10, 64};

Tokens tokens_of(std::size_t n, std::size_t vocabulary) {
  Tokens tokens(n);
  for (std::size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<std::int32_t>((i * 7 + i / 3) % vocabulary);
  }
  return tokens;
}

}  // namespace

TEST_CASE("an embedding whose rows are shared out is the whole one, forward and backward") {
  constexpr std::size_t kTokens = 11;
  for (const std::size_t vocabulary : kVocabularies) {
    const Tokens tokens = tokens_of(kTokens, vocabulary);
    const Floats table = random_floats(vocabulary * kWidth, 1);
    const Floats d = random_floats(kTokens * kWidth, 2);
    Floats expected(kTokens * kWidth), gradient = random_floats(vocabulary * kWidth, 3);
    const Floats before = gradient;
    for (std::size_t i = 0; i < kTokens; ++i) {
      const auto row = static_cast<std::size_t>(tokens[i]) * kWidth;
      for (std::size_t c = 0; c < kWidth; ++c) {
        expected[i * kWidth + c] = table[row + c];
        gradient[row + c] += d[i * kWidth + c];
      }
    }
    for (const RowLayout layout : {RowLayout::whole, RowLayout::shared}) {
      for (int size = 1; size <= 4; ++size) {
        on_tensor_axis(size, [&](Mesh<Host>& mesh) {
          TensorGroup<Host> group(mesh,
                                  {{Kind::sum, kTokens, kWidth}, {Kind::rows, kTokens, kWidth}});
          ParallelRegion<Host> region(group, layout);
          const Share share = group.share(vocabulary);
          const Floats own_table = rows_of(table, kWidth, share);
          Floats partial(kTokens * kWidth, std::numeric_limits<float>::quiet_NaN());
          embed_share(std::span<const std::int32_t>(tokens), share, kWidth, own_table.data(),
                      partial.data());
          const Share rows = region.own(kTokens);
          Floats own(rows.size * kWidth);
          region.leave(kTokens, kWidth, partial.data(), own.data());
          CHECK(own == rows_of(expected, kWidth, rows));

          const Floats own_d = rows_of(d, kWidth, rows);
          Floats buffer(kTokens * kWidth);
          const float* all = region.leave_backward(kTokens, kWidth, own_d.data(), buffer.data());
          Floats own_gradient = rows_of(before, kWidth, share);
          embed_share_backward(std::span<const std::int32_t>(tokens), share, kWidth, all,
                               own_gradient.data());
          CHECK(own_gradient == rows_of(gradient, kWidth, share));
        });
      }
    }
  }
}

TEST_CASE("a bf16 table is widened") {
  const bf16 table[] = {to_bf16(1.5f), to_bf16(-2.0f)};
  const std::int32_t tokens[] = {4, 3, -1, 5};
  float out[] = {9, 9, 9, 9};
  embed_share(std::span<const std::int32_t>(tokens), Share{3, 2}, 1, table, out);
  CHECK(out[0] == -2.0f);
  CHECK(out[1] == 1.5f);
  CHECK(out[2] == 0.0f);
  CHECK(out[3] == 0.0f);
}

TEST_CASE("cross-entropy over a shared vocabulary: loss and gradient as in double, unsharded") {
  constexpr std::size_t kRows = 9;
  constexpr float kScale = 0.25f;
  for (const std::size_t vocabulary : kVocabularies) {
    Tokens targets = tokens_of(kRows, vocabulary);
    targets[4] = -1;
    Floats logits = random_floats(kRows * vocabulary, 7);
    // Rows far from zero, and of one logit far above the others, on one rank or another.
    for (std::size_t i = 0; i < vocabulary; ++i) logits[i] += 300;
    logits[vocabulary] += 200;
    logits[3 * vocabulary - 1] += 50;
    double loss = 0;
    Floats gradient(kRows * vocabulary);
    for (std::size_t row = 0; row < kRows; ++row) {
      if (targets[row] < 0) continue;
      const float* at = logits.data() + row * vocabulary;
      double highest = at[0], sum = 0;
      for (std::size_t i = 0; i < vocabulary; ++i) highest = std::max<double>(highest, at[i]);
      for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(at[i] - highest);
      const auto target = static_cast<std::size_t>(targets[row]);
      loss += std::log(sum) + highest - at[target];
      for (std::size_t i = 0; i < vocabulary; ++i) {
        const double probability = std::exp(at[i] - highest) / sum;
        gradient[row * vocabulary + i] =
            static_cast<float>(kScale * (probability - (i == target ? 1 : 0)));
      }
    }
    for (int size = 1; size <= 4; ++size) {
      on_tensor_axis(size, [&](Mesh<Host>& mesh) {
        TensorGroup<Host> group(mesh, {});
        VocabularyCrossEntropy<Host> cross_entropy(group, kRows);
        const Share share = group.share(vocabulary);
        Floats own = columns_of(logits, vocabulary, share);
        const RowLosses got =
            cross_entropy(std::span<const std::int32_t>(targets), share, kScale, own.data());
        CHECK(got.count == kRows - 1);
        CHECK(got.sum == doctest::Approx(loss).epsilon(1e-6));
        for (const double theirs : mesh.communicator().exchange(got.sum)) CHECK(theirs == got.sum);
        const Floats expected = columns_of(gradient, vocabulary, share);
        REQUIRE(own.size() == expected.size());
        for (std::size_t i = 0; i < own.size(); ++i) {
          CHECK(std::abs(own[i] - expected[i]) < 1e-6);
        }
        // One exchange, of a part a row.
        const auto gathers = group.counts()[CollectiveKind::all_gather];
        CHECK(gathers.count == (size == 1 ? 0u : 1u));
        CHECK(gathers.bytes == kRows * sizeof(SoftmaxPart) * static_cast<unsigned>(size - 1));
        CHECK_THROWS_AS(cross_entropy(std::span<const std::int32_t>(Tokens(kRows + 1)), share,
                                      kScale, own.data()),
                        Error);
      });
    }
  }
}

TEST_CASE("cross-entropy: a logit that is no number shows in every rank's loss") {
  on_tensor_axis(2, [](Mesh<Host>& mesh) {
    TensorGroup<Host> group(mesh, {});
    VocabularyCrossEntropy<Host> cross_entropy(group, 1);
    const Tokens targets = {0};
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      float logits[2] = {1, group.rank() == 1 ? bad : 2};
      const RowLosses got =
          cross_entropy(std::span<const std::int32_t>(targets), group.share(4), 1, logits);
      CHECK_FALSE(std::isfinite(got.sum));
    }
  });
}
