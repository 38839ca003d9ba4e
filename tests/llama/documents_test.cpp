// Documents within sequences: where they start, how many there are at the most, and that the
// reference's attention keeps within them.
#include "documents.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <vector>

#include "reference.hpp"
#include "reference/differences.hpp"

namespace {

namespace ref = llama_reference;
using ref::Doubles;
using ref::Tokens;
using Starts = std::vector<std::int32_t>;

constexpr std::int32_t kEnd = 7;

/// With room for `most` documents; the number of them is checked.
Starts starts_of(const std::vector<std::int32_t>& tokens, std::size_t sequence, std::size_t most,
                 std::size_t count) {
  Starts starts(most + 1, -1);
  CHECK(llama::write_document_starts(tokens, sequence, kEnd, starts) == count);
  return starts;
}

/// The documents of a batch as (first row, rows).
struct Document {
  std::size_t first, rows;
};
std::vector<Document> documents_of(const std::vector<std::size_t>& first_rows) {
  std::vector<Document> all;
  for (std::size_t row = 0; row < first_rows.size(); ++row) {
    if (first_rows[row] == row) all.push_back({row, 0});
    ++all.back().rows;
  }
  return all;
}

Tokens with_ends(Tokens tokens, std::initializer_list<std::size_t> ends) {
  for (std::uint32_t& token : tokens) {
    if (token == kEnd) token = kEnd + 1;
  }
  for (const std::size_t at : ends) tokens[at] = kEnd;
  return tokens;
}

template <class T>
std::span<const T> part(const std::vector<T>& all, std::size_t first, std::size_t count) {
  return std::span<const T>(all).subspan(first, count);
}

}  // namespace

TEST_CASE("llama documents: starts of a batch") {
  const std::vector<std::int32_t> none(8, 1);
  CHECK(starts_of(none, 8, 1, 1) == Starts{0, 8});
  CHECK(starts_of(none, 4, 2, 2) == Starts{0, 4, 8});
  CHECK(starts_of(none, 4, 5, 2) == Starts{0, 4, 8, 8, 8, 8});
  CHECK(starts_of(none, 1, 8, 8) == Starts{0, 1, 2, 3, 4, 5, 6, 7, 8});

  const std::vector<std::int32_t> only(6, kEnd);
  CHECK(starts_of(only, 3, 6, 6) == Starts{0, 1, 2, 3, 4, 5, 6});
  CHECK(starts_of(only, 6, 6, 6) == Starts{0, 1, 2, 3, 4, 5, 6});

  SUBCASE("a border at every position; at a sequence's end there is one already") {
    for (std::size_t at = 0; at < 8; ++at) {
      CAPTURE(at);
      std::vector<std::int32_t> tokens(8, 1);
      tokens[at] = kEnd;
      Starts expected{0, 4, 8};
      if (at % 4 != 3) {
        expected.push_back(static_cast<std::int32_t>(at + 1));
        std::sort(expected.begin(), expected.end());
      }
      const std::size_t count = expected.size() - 1;
      expected.resize(5, 8);
      CHECK(starts_of(tokens, 4, 4, count) == expected);
    }
  }

  SUBCASE("more than there is room for are refused") {
    Starts starts(3);
    CHECK_NOTHROW(llama::write_document_starts(none, 4, kEnd, starts));
    CHECK_THROWS_AS(llama::write_document_starts(none, 2, kEnd, starts), std::length_error);
    CHECK_THROWS_AS(llama::write_document_starts(none, 8, kEnd, std::span(starts).first(1)),
                    std::length_error);
  }

  SUBCASE("they are the reference's") {
    const Tokens tokens = ref::random_tokens(120, 3, 9);
    const std::vector<std::int32_t> same(tokens.begin(), tokens.end());
    const std::vector<Document> expected = documents_of(ref::document_of_rows(tokens, 40, kEnd));
    REQUIRE(expected.size() > 6);
    const Starts starts = starts_of(same, 40, expected.size() + 3, expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(static_cast<std::size_t>(starts[i]) == expected[i].first);
      CHECK(static_cast<std::size_t>(starts[i + 1]) == expected[i].first + expected[i].rows);
    }
  }
}

TEST_CASE("llama documents: whole sequences are those of a batch without ends") {
  const std::vector<std::int32_t> none(12, 1);
  CHECK(llama::whole_sequences(3, 4, 5) == starts_of(none, 4, 5, 3));
  CHECK(llama::whole_sequences(3, 4, 3) == starts_of(none, 4, 3, 3));
  CHECK_THROWS_AS((void)llama::whole_sequences(3, 4, 2), std::invalid_argument);
}

TEST_CASE("llama documents: the most of any sequence") {
  const std::vector<std::int32_t> tokens{1, 7, 1, 7, 7, 1, 1, 1, 7, 7};
  const auto most = [&](std::size_t sequence) {
    return llama::most_documents(tokens.size(), sequence, kEnd,
                                 [&](std::size_t i) { return tokens[i]; });
  };
  for (std::size_t sequence = 1; sequence <= tokens.size(); ++sequence) {
    CAPTURE(sequence);
    std::size_t expected = 0;
    for (std::size_t first = 0; first + sequence <= tokens.size(); ++first) {
      Starts starts(sequence + 1);
      expected = std::max(expected, llama::write_document_starts(part(tokens, first, sequence),
                                                                 sequence, kEnd, starts));
    }
    CHECK(most(sequence) == expected);
  }
  CHECK(most(1) == 1);
  CHECK(most(10) == 5);
}

TEST_CASE("llama reference: attention within documents is each document's by itself") {
  const Tokens tokens = with_ends(ref::random_tokens(22, 1, 37), {0, 3, 4, 10, 15, 20});
  const std::vector<std::size_t> first_rows = ref::document_of_rows(tokens, 11, kEnd);
  const std::vector<Document> documents = documents_of(first_rows);
  REQUIRE(documents.size() == 7);
  ref::AttentionShape s{2, 11, 6, 2, 4};
  const Doubles qkv = ref::random_values(s.rows() * s.packed(), 1);
  const Doubles dout = ref::random_values(s.rows() * s.width(), 2);
  Doubles out(dout.size()), sums(s.heads * s.rows()), dqkv(qkv.size()), undivided(dout.size());
  ref::attention_forward<double>(s, qkv.data(), undivided.data(), nullptr);
  s.documents = first_rows.data();
  ref::attention_forward(s, qkv.data(), out.data(), sums.data());
  ref::attention_backward(s, qkv.data(), dout.data(), dqkv.data());
  CHECK(out != undivided);

  for (const Document& d : documents) {
    CAPTURE(d.first);
    const ref::AttentionShape alone{1, d.rows, 6, 2, 4};
    Doubles its_out(d.rows * s.width()), its_sums(s.heads * d.rows), its_dqkv(d.rows * s.packed());
    ref::attention_forward(alone, qkv.data() + d.first * s.packed(), its_out.data(),
                           its_sums.data());
    ref::attention_backward(alone, qkv.data() + d.first * s.packed(),
                            dout.data() + d.first * s.width(), its_dqkv.data());
    CHECK(std::ranges::equal(its_out, part(out, d.first * s.width(), its_out.size())));
    CHECK(std::ranges::equal(its_dqkv, part(dqkv, d.first * s.packed(), its_dqkv.size())));
    const std::size_t sequence = d.first / s.seq;
    for (std::size_t head = 0; head < s.heads; ++head) {
      const std::size_t at = (sequence * s.heads + head) * s.seq + d.first % s.seq;
      CHECK(std::ranges::equal(part(its_sums, head * d.rows, d.rows), part(sums, at, d.rows)));
    }
  }
}

TEST_CASE("llama reference: a model of documents is the documents' models") {
  const ref::Shape shape{2, 24, 40, 6, 2, 37, true};
  constexpr std::size_t kBatch = 2;
  constexpr std::size_t kSequence = 13;
  constexpr std::size_t kRows = kBatch * kSequence;
  ref::LlamaReference<double> packed(shape, 3), alone(shape, 3);
  const Tokens tokens = with_ends(ref::random_tokens(kRows, 1, shape.vocab), {4, 5, 12, 18, 24});
  const Tokens targets = ref::random_tokens(kRows, 2, shape.vocab);
  const std::vector<std::size_t> first_rows = ref::document_of_rows(tokens, kSequence, kEnd);
  const double loss = packed.forward(tokens, targets, kBatch, first_rows);
  packed.backward();

  double sum = 0.0;
  std::vector<Doubles> gradients;
  for (const Doubles& gradient : packed.gradients()) gradients.emplace_back(gradient.size());
  for (const Document& d : documents_of(first_rows)) {
    CAPTURE(d.first);
    // Turned by positions of its own: attention sees differences of positions alone.
    const double share = static_cast<double>(d.rows) / kRows;
    sum += share * alone.forward(part(tokens, d.first, d.rows), part(targets, d.first, d.rows), 1);
    alone.backward();
    for (std::size_t i = 0; i < alone.logits().size(); ++i) {
      CHECK(std::abs(alone.logits()[i] - packed.logits()[d.first * shape.vocab + i]) < 1e-12);
    }
    for (std::size_t id = 0; id < gradients.size(); ++id) {
      for (std::size_t i = 0; i < gradients[id].size(); ++i) {
        gradients[id][i] += share * alone.gradients()[id][i];
      }
    }
  }
  CHECK(std::abs(sum - loss) < 1e-12);
  for (std::size_t id = 0; id < gradients.size(); ++id) {
    CAPTURE(packed.description()[id].name);
    double off = 0.0;
    for (std::size_t i = 0; i < gradients[id].size(); ++i) {
      off = std::max(off, std::abs(gradients[id][i] - packed.gradients()[id][i]));
    }
    CHECK(off < 1e-12);
  }
}
