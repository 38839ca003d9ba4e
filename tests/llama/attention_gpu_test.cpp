// Attention of examples/llama against the reference: whole sequences, documents within them, and
// the shortest that there are.
#include "attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "device_values.hpp"
#include "documents.hpp"
#include "reference.hpp"

using namespace llama_test;
namespace ref = llama_reference;
using tessera::bf16;

namespace {

const cudaStream_t kStream = cudaStreamPerThread;

/// Both directions of whole sequences.
template <class T>
void check_attention(llama::Attention<T>& attention, const ref::AttentionShape& shape) {
  const Input<T> qkv(shape.rows() * shape.packed(), 1), upper(shape.rows() * shape.width(), 2);
  const Device<T> out(shape.rows() * shape.width()), gradient(shape.rows() * shape.packed());
  const Device<float> statistics(shape.heads * shape.rows());
  const Device<unsigned char> workspace(attention.workspace_bytes() + 1);
  attention.forward(qkv.device.data(), out.data(), statistics.data(), workspace.data());
  Doubles expected(shape.rows() * shape.width()), sums(shape.heads * shape.rows()),
      of_qkv(shape.rows() * shape.packed());
  ref::attention_forward(shape, qkv.values.data(), expected.data(), sums.data());
  ref::attention_backward(shape, qkv.values.data(), upper.values.data(), of_qkv.data());
  const double allowed = 3 * tolerance<T>();  // the probabilities are rounded too
  CHECK(error(out.doubles(), expected) < allowed);
  CHECK(error(statistics.doubles(), sums) < allowed);
  attention.backward(qkv.device.data(), out.data(), statistics.data(), upper.device.data(),
                     gradient.data(), workspace.data());
  CHECK(error(gradient.doubles(), of_qkv) < 2 * allowed);
}

/// On the device, with rows of NaN behind, which nothing may see.
template <class T>
Device<T> with_tail(const Doubles& values, std::size_t more) {
  std::vector<T> all;
  for (const double value : values) all.push_back(narrow<T>(value));
  all.resize(values.size() + more, narrow<T>(std::numeric_limits<double>::quiet_NaN()));
  return Device<T>(all);
}

Doubles first_of(Doubles values, std::size_t count) {
  values.resize(count);
  return values;
}

/// As the reference has them, [batch, heads, sequence], of [rows, heads].
Doubles by_heads(const ref::AttentionShape& s, const Doubles& by_rows) {
  Doubles all(by_rows.size());
  for (std::size_t row = 0; row < s.rows(); ++row) {
    for (std::size_t head = 0; head < s.heads; ++head) {
      all[(row / s.seq * s.heads + head) * s.seq + row % s.seq] = by_rows[row * s.heads + head];
    }
  }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("attention: output, statistics and gradients; grouped and not", T, float, bf16) {
  for (const std::size_t kv_heads : {2u, 6u}) {
    for (const std::size_t head_dim : {64u, 128u}) {
      for (const bool deterministic : {false, true}) {
        CAPTURE(kv_heads);
        CAPTURE(head_dim);
        llama::Attention<T> attention(kStream, {2, 72, 6, kv_heads, head_dim}, deterministic);
        if (!deterministic) attention.tune();
        check_attention<T>(attention, {2, 72, 6, kv_heads, head_dim});
      }
    }
  }
}

TEST_CASE_TEMPLATE("attention within documents: one plan for any borders, nothing else touched", T,
                   float, bf16) {
  constexpr std::size_t kSequence = 200;
  constexpr std::size_t kRows = 2 * kSequence;
  constexpr std::uint32_t kEnd = 1;
  const auto ended = [](std::initializer_list<std::size_t> at) {
    ref::Tokens tokens(kRows);
    for (const std::size_t i : at) tokens[i] = kEnd;
    return tokens;
  };
  const ref::Tokens borders[] = {ended({}),
                                 ended({199}),
                                 ended({63, 127, 191, 263}),
                                 ended({0, 1, 64, 130, 131, 197, 198, 200, 328, 398, 399}),
                                 ref::random_tokens(kRows, 5, 20),
                                 ref::Tokens(kRows, kEnd)};
  for (const std::size_t kv_heads : {2u, 6u}) {
    for (const std::size_t head_dim : {64u, 128u}) {
      for (const bool deterministic : {false, true}) {
        CAPTURE(kv_heads);
        CAPTURE(head_dim);
        CAPTURE(deterministic);
        ref::AttentionShape shape{2, kSequence, 6, kv_heads, head_dim};
        const Input<T> qkv(shape.rows() * shape.packed(), 1),
            upper(shape.rows() * shape.width(), 2);
        const std::size_t tail = 130;
        const Device<T> in = with_tail<T>(qkv.values, tail * shape.packed());
        const Device<T> out_gradient = with_tail<T>(upper.values, tail * shape.width());
        // As many as there are where every token ends one.
        llama::Attention<T> attention(kStream, {2, kSequence, 6, kv_heads, head_dim, kRows},
                                      deterministic);
        if (!deterministic) attention.tune();
        const Device<unsigned char> workspace(attention.workspace_bytes() + 1);
        const auto check = [&] {
          const std::vector<T> ones((kRows + tail) * shape.packed(), narrow<T>(1.0));
          const Device<T> out(ones), gradient(ones);
          const Device<float> statistics(shape.heads * shape.rows());
          attention.forward(in.data(), out.data(), statistics.data(), workspace.data());
          attention.backward(in.data(), out.data(), statistics.data(), out_gradient.data(),
                             gradient.data(), workspace.data());
          Doubles expected(shape.rows() * shape.width()), sums(shape.heads * shape.rows()),
              of_qkv(shape.rows() * shape.packed());
          ref::attention_forward(shape, qkv.values.data(), expected.data(), sums.data());
          ref::attention_backward(shape, qkv.values.data(), upper.values.data(), of_qkv.data());
          const double allowed = 3 * tolerance<T>();
          const Doubles got_sums = statistics.doubles();
          CHECK(error(first_of(out.doubles(), expected.size()), expected) < allowed);
          CHECK(error(std::is_same_v<T, bf16> ? by_heads(shape, got_sums) : got_sums, sums) <
                allowed);
          CHECK(error(first_of(gradient.doubles(), of_qkv.size()), of_qkv) < 2 * allowed);
          for (const auto& [array, used] :
               {std::pair(&out, expected.size()), std::pair(&gradient, of_qkv.size())}) {
            const Doubles all = array->doubles();
            CHECK(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(used), all.end(),
                              [](double value) { return value == 1.0; }));
          }
        };
        check();  // before any are set, sequences are whole
        for (const ref::Tokens& tokens : borders) {
          const std::vector<std::size_t> first_rows =
              ref::document_of_rows(tokens, kSequence, kEnd);
          const std::vector<std::int32_t> same(tokens.begin(), tokens.end());
          std::vector<std::int32_t> starts(kRows + 1);
          const std::size_t count = llama::write_document_starts(
              same, kSequence, static_cast<std::int32_t>(kEnd), starts);
          CAPTURE(count);
          attention.set_documents(starts.data());
          shape.documents = first_rows.data();
          check();
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("attention of two tokens", T, float, bf16) {
  llama::Attention<T> attention(kStream, {3, 2, 6, 2, 64}, true);
  check_attention<T>(attention, {3, 2, 6, 2, 64});
}

TEST_CASE("attention of one token is for fp32 alone") {
  const llama::AttentionShape shape{3, 1, 6, 2, 64};
  llama::PlainAttention attention(kStream, shape, true);
  check_attention<float>(attention, {3, 1, 6, 2, 64});
  CHECK_THROWS_AS(llama::FusedAttention(kStream, shape, true), std::invalid_argument);
}
