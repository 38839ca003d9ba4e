// Each block by itself: its formula, and its gradients against differences, in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/attention.hpp"
#include "reference/cross_entropy.hpp"
#include "reference/differences.hpp"
#include "reference/embedding.hpp"
#include "reference/matmul.hpp"
#include "reference/rms_norm.hpp"
#include "reference/rope.hpp"
#include "reference/swiglu.hpp"

namespace {

using llama_reference::AttentionShape;
using llama_reference::dot;
using llama_reference::Doubles;
using llama_reference::gradient_error;
using llama_reference::random_tokens;
using llama_reference::random_values;
using llama_reference::Tokens;

constexpr double kTolerance = 1e-9;

double largest_difference(const Doubles& a, const Doubles& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::abs(a[i] - b[i]);
    if (std::isnan(off)) return off;
    largest = std::max(largest, off);
  }
  return largest;
}

Doubles attended(const AttentionShape& s, const Doubles& qkv) {
  Doubles out(s.rows() * s.width());
  llama_reference::attention_forward<double>(s, qkv.data(), out.data(), nullptr);
  return out;
}

}  // namespace

TEST_CASE("llama reference: RMSNorm") {
  constexpr std::size_t kRows = 3;
  constexpr std::size_t kWidth = 21;
  Doubles x = random_values(kRows * kWidth, 1);
  Doubles w = random_values(kWidth, 2);
  const Doubles dy = random_values(x.size(), 3);
  const Doubles residual = random_values(x.size(), 4);
  Doubles inverse(kRows);
  Doubles y(x.size());
  const auto loss = [&] {
    llama_reference::rms_norm_forward(kRows, kWidth, x.data(), w.data(), inverse.data(), y.data());
    return dot(y, dy) + dot(x, residual);
  };
  loss();
  const Doubles saved = inverse;
  Doubles dx = residual;
  Doubles dw(kWidth, 5.0);
  llama_reference::rms_norm_backward(kRows, kWidth, x.data(), w.data(), saved.data(), dy.data(),
                                     dx.data(), dx.data(), dw.data());
  for (double& value : dw) value -= 5.0;
  CHECK(gradient_error(loss, x, dx) < kTolerance);
  CHECK(gradient_error(loss, w, dw) < kTolerance);

  Doubles alone(x.size());
  Doubles ignored(kWidth);
  llama_reference::rms_norm_backward<double>(kRows, kWidth, x.data(), w.data(), saved.data(),
                                             dy.data(), nullptr, alone.data(), ignored.data());
  for (std::size_t i = 0; i < alone.size(); ++i) alone[i] += residual[i];
  CHECK(largest_difference(alone, dx) < 1e-14);
}

TEST_CASE("llama reference: RoPE") {
  const AttentionShape s{2, 5, 6, 2, 8};
  Doubles qkv = random_values(s.rows() * s.packed(), 1);
  Doubles turned = qkv;
  llama_reference::rope_forward(s, turned.data());
  const std::size_t values = (s.heads + s.kv_heads) * s.head_dim;

  SUBCASE("position 0 and all values stay; the rest is turned") {
    for (std::size_t row = 0; row < s.rows(); ++row) {
      for (std::size_t i = 0; i < s.packed(); ++i) {
        const bool stays = row % s.seq == 0 || i >= values;
        CHECK((turned[row * s.packed() + i] == qkv[row * s.packed() + i]) == stays);
      }
    }
  }

  SUBCASE("by the angles of the formula") {
    // Position 3, query head 1, pair 2 of 4.
    const std::size_t at = 3 * s.packed() + s.head_dim + 2;
    const double angle = 3.0 * std::pow(500000.0, -4.0 / 8.0);
    CHECK(turned[at] == doctest::Approx(qkv[at] * std::cos(angle) - qkv[at + 4] * std::sin(angle)));
    CHECK(turned[at + 4] ==
          doctest::Approx(qkv[at + 4] * std::cos(angle) + qkv[at] * std::sin(angle)));
  }

  SUBCASE("scores depend on the distance alone") {
    Doubles same = qkv;  // every row as row 0
    for (std::size_t row = 1; row < s.rows(); ++row) {
      std::copy_n(same.begin(), s.packed(),
                  same.begin() + static_cast<std::ptrdiff_t>(row * s.packed()));
    }
    llama_reference::rope_forward(s, same.data());
    const auto score = [&](std::size_t query, std::size_t key) {
      return llama_reference::dot_product(same.data() + query * s.packed() + s.query_offset(4),
                                          same.data() + key * s.packed() + s.key_offset(4),
                                          s.head_dim);
    };
    CHECK(score(4, 2) == doctest::Approx(score(2, 0)));
    CHECK(score(3, 0) == doctest::Approx(score(4, 1)));
    CHECK(score(3, 0) != doctest::Approx(score(4, 0)));
  }

  SUBCASE("the gradient is turned back") {
    const Doubles dturned = random_values(qkv.size(), 2);
    const auto loss = [&] {
      Doubles at = qkv;
      llama_reference::rope_forward(s, at.data());
      return dot(at, dturned);
    };
    Doubles dqkv = dturned;
    llama_reference::rope_backward(s, dqkv.data());
    CHECK(gradient_error(loss, qkv, dqkv) < kTolerance);
  }
}

static void check_attention_gradient(const AttentionShape& s) {
  Doubles qkv = random_values(s.rows() * s.packed(), 1);
  const Doubles dout = random_values(s.rows() * s.width(), 2);
  const auto loss = [&] { return dot(attended(s, qkv), dout); };
  Doubles dqkv(qkv.size(), 9.0);
  llama_reference::attention_backward(s, qkv.data(), dout.data(), dqkv.data());
  CHECK(gradient_error(loss, qkv, dqkv) < kTolerance);
}

TEST_CASE("llama reference: attention's gradient") {
  for (const AttentionShape& s :
       {AttentionShape{2, 7, 6, 2, 4}, {1, 5, 3, 3, 6}, {2, 3, 4, 1, 2}, {3, 1, 2, 1, 4}}) {
    CAPTURE(s.seq);
    check_attention_gradient(s);
  }
}

TEST_CASE("llama reference: attention's gradient within documents") {
  AttentionShape s{2, 7, 6, 2, 4};
  const std::vector<std::size_t> documents{0, 0, 0, 3, 4, 4, 4, 7, 8, 8, 8, 8, 12, 12};
  s.documents = documents.data();
  check_attention_gradient(s);
}

TEST_CASE("llama reference: attention gives convex combinations of the values so far") {
  const AttentionShape s{2, 7, 6, 2, 4};
  Doubles qkv = random_values(s.rows() * s.packed(), 1);
  const auto value = [&](std::size_t row, std::size_t kv_head, std::size_t i) -> double& {
    return qkv[row * s.packed() + (s.heads + s.kv_heads + kv_head) * s.head_dim + i];
  };
  const auto out = [&](const Doubles& all, std::size_t row, std::size_t head, std::size_t i) {
    return all[row * s.width() + head * s.head_dim + i];
  };

  SUBCASE("between the smallest and the largest") {
    const Doubles got = attended(s, qkv);
    for (std::size_t row = 0; row < s.rows(); ++row) {
      for (std::size_t head = 0; head < s.heads; ++head) {
        for (std::size_t i = 0; i < s.head_dim; ++i) {
          double low = value(row, head / 3, i);
          double high = low;
          for (std::size_t j = row - row % s.seq; j < row; ++j) {
            low = std::min(low, value(j, head / 3, i));
            high = std::max(high, value(j, head / 3, i));
          }
          CHECK(out(got, row, head, i) >= low - 1e-12);
          CHECK(out(got, row, head, i) <= high + 1e-12);
        }
      }
    }
  }

  SUBCASE("with weights that sum to 1, of the key-value head of the query's group") {
    for (std::size_t row = 0; row < s.rows(); ++row) {
      for (std::size_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
        for (std::size_t i = 0; i < s.head_dim; ++i) {
          value(row, kv_head, i) = 1.0 + static_cast<double>(kv_head);
        }
      }
    }
    const Doubles got = attended(s, qkv);
    for (std::size_t row = 0; row < s.rows(); ++row) {
      for (std::size_t head = 0; head < s.heads; ++head) {
        CHECK(out(got, row, head, 0) == doctest::Approx(head < 3 ? 1.0 : 2.0));
      }
    }
  }

  SUBCASE("and the logarithms of the sums make the probabilities") {
    Doubles log_sums(s.batch * s.heads * s.seq);
    Doubles ignored(s.rows() * s.width());
    llama_reference::attention_forward(s, qkv.data(), ignored.data(), log_sums.data());
    const std::size_t head = 4;
    const std::size_t t = 5;
    const double* second = qkv.data() + s.seq * s.packed();
    double sum = 0.0;
    for (std::size_t j = 0; j <= t; ++j) {
      const double score =
          llama_reference::dot_product(second + t * s.packed() + s.query_offset(head),
                                       second + j * s.packed() + s.key_offset(head), s.head_dim);
      sum += std::exp(score / 2.0 - log_sums[(s.heads + head) * s.seq + t]);
    }
    CHECK(sum == doctest::Approx(1.0));
  }
}

TEST_CASE("llama reference: SwiGLU") {
  constexpr std::size_t kRows = 3;
  constexpr std::size_t kFf = 11;
  Doubles gate_up = random_values(kRows * 2 * kFf, 1, 2.0);
  const Doubles dout = random_values(kRows * kFf, 2);
  Doubles out(dout.size());
  const auto loss = [&] {
    llama_reference::swiglu_forward(kRows, kFf, gate_up.data(), out.data());
    return dot(out, dout);
  };
  loss();
  const double gate = gate_up[2 * kFf + 4];
  CHECK(out[kFf + 4] ==
        doctest::Approx(gate / (1.0 + std::exp(-gate)) * gate_up[2 * kFf + kFf + 4]));
  Doubles dgate_up(gate_up.size());
  llama_reference::swiglu_backward(kRows, kFf, gate_up.data(), dout.data(), dgate_up.data());
  CHECK(gradient_error(loss, gate_up, dgate_up) < kTolerance);
}

TEST_CASE("llama reference: cross entropy") {
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kVocab = 13;
  Doubles logits = random_values(kRows * kVocab, 1, 3.0);
  const Tokens targets = random_tokens(kRows, 2, kVocab);
  Doubles row_losses(kRows);
  const auto loss = [&] {
    return llama_reference::cross_entropy_loss(kRows, kVocab, logits.data(), targets.data(),
                                               row_losses.data());
  };
  const double mean = loss();
  CHECK(dot(row_losses, Doubles(kRows, 1.0)) / kRows == doctest::Approx(mean));
  double sum = 0.0;
  for (std::size_t i = 0; i < kVocab; ++i) sum += std::exp(logits[kVocab + i]);
  CHECK(row_losses[1] == doctest::Approx(std::log(sum) - logits[kVocab + targets[1]]));

  Doubles dlogits(logits.size());
  llama_reference::cross_entropy_backward(kRows, kVocab, logits.data(), targets.data(),
                                          dlogits.data());
  CHECK(gradient_error(loss, logits, dlogits) < kTolerance);

  const Doubles shifted = [&] {
    Doubles all = logits;
    for (double& value : all) value += 2000.0;
    return all;
  }();
  CHECK(llama_reference::cross_entropy_loss<double>(kRows, kVocab, shifted.data(), targets.data(),
                                                    nullptr) == doctest::Approx(mean));
}

TEST_CASE("llama reference: the embedding's gradient adds up a token's rows") {
  constexpr std::size_t kDim = 5;
  const Tokens tokens{3, 0, 3, 3, 1};
  Doubles table = random_values(4 * kDim, 1);
  const Doubles dout = random_values(tokens.size() * kDim, 2);
  const auto loss = [&] {
    Doubles out(dout.size());
    llama_reference::embedding_forward(tokens.size(), kDim, tokens.data(), table.data(),
                                       out.data());
    return dot(out, dout);
  };
  Doubles dtable(table.size(), 1.0);
  llama_reference::embedding_backward(tokens.size(), kDim, tokens.data(), dout.data(),
                                      dtable.data());
  for (double& value : dtable) value -= 1.0;
  CHECK(gradient_error(loss, table, dtable) < kTolerance);
}

TEST_CASE("llama reference: products, over several blocks and both ways of reading") {
  constexpr std::size_t kRows = 3;
  constexpr std::size_t kColumns = 70;
  constexpr std::size_t kInner = 131;
  const Doubles left = random_values(kRows * kInner, 1);
  const Doubles right = random_values(kInner * kColumns, 2);
  for (const bool left_transposed : {false, true}) {
    for (const bool right_transposed : {false, true}) {
      Doubles expected(kRows * kColumns, 1.0);
      for (std::size_t r = 0; r < kRows; ++r) {
        for (std::size_t c = 0; c < kColumns; ++c) {
          for (std::size_t i = 0; i < kInner; ++i) {
            expected[r * kColumns + c] +=
                left[left_transposed ? i * kRows + r : r * kInner + i] *
                right[right_transposed ? c * kInner + i : i * kColumns + c];
          }
        }
      }
      Doubles got(expected.size(), 1.0);
      llama_reference::add_product<double>(kRows, kColumns, kInner, {left.data(), left_transposed},
                                           {right.data(), right_transposed}, got.data());
      CHECK(largest_difference(got, expected) < 1e-11);
    }
  }
}
