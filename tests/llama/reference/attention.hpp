// Causal grouped-query attention over packed rows that are turned already, within documents.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "attention_shape.hpp"
#include "dot_product.hpp"

namespace llama_reference {

/// The probabilities with which the query of `position` sees positions `first` to itself, into
/// `probabilities`; returns the logarithm of the sum of exponentials. `sequence` is row 0's.
template <class Real>
Real attention_probabilities(const AttentionShape& s, const Real* sequence, std::size_t head,
                             std::size_t first, std::size_t position, Real* probabilities) {
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(s.head_dim));
  const Real* query = sequence + position * s.packed() + s.query_offset(head);
  for (std::size_t j = first; j <= position; ++j) {
    const Real* key = sequence + j * s.packed() + s.key_offset(head);
    probabilities[j] = scale * dot_product(query, key, s.head_dim);
  }
  const Real largest = *std::max_element(probabilities + first, probabilities + position + 1);
  Real sum{};
  for (std::size_t j = first; j <= position; ++j) {
    probabilities[j] = std::exp(probabilities[j] - largest);
    sum += probabilities[j];
  }
  for (std::size_t j = first; j <= position; ++j) probabilities[j] /= sum;
  return largest + std::log(sum);
}

/// out [rows, width]. log_sums [batch, heads, seq], what a kernel that does not keep probabilities
/// saves, or null.
template <class Real>
void attention_forward(const AttentionShape& s, const Real* qkv, Real* out, Real* log_sums) {
  std::vector<Real> probabilities(s.seq);
  for (std::size_t b = 0; b < s.batch; ++b) {
    const Real* sequence = qkv + b * s.seq * s.packed();
    for (std::size_t head = 0; head < s.heads; ++head) {
      for (std::size_t t = 0; t < s.seq; ++t) {
        const std::size_t first = s.first_seen(b, t);
        const Real log_sum =
            attention_probabilities(s, sequence, head, first, t, probabilities.data());
        if (log_sums != nullptr) log_sums[(b * s.heads + head) * s.seq + t] = log_sum;
        Real* to = out + (b * s.seq + t) * s.width() + head * s.head_dim;
        std::fill(to, to + s.head_dim, Real{});
        for (std::size_t j = first; j <= t; ++j) {
          const Real* value = sequence + j * s.packed() + s.value_offset(head);
          for (std::size_t i = 0; i < s.head_dim; ++i) to[i] += probabilities[j] * value[i];
        }
      }
    }
  }
}

/// dqkv [rows, packed] is written: key-value heads sum over the query heads that share them.
template <class Real>
void attention_backward(const AttentionShape& s, const Real* qkv, const Real* dout, Real* dqkv) {
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(s.head_dim));
  std::vector<Real> probabilities(s.seq);
  std::vector<Real> dprobabilities(s.seq);
  std::fill(dqkv, dqkv + s.rows() * s.packed(), Real{});
  for (std::size_t b = 0; b < s.batch; ++b) {
    const Real* sequence = qkv + b * s.seq * s.packed();
    Real* dsequence = dqkv + b * s.seq * s.packed();
    for (std::size_t head = 0; head < s.heads; ++head) {
      for (std::size_t t = 0; t < s.seq; ++t) {
        const std::size_t first = s.first_seen(b, t);
        attention_probabilities(s, sequence, head, first, t, probabilities.data());
        const Real* from = dout + (b * s.seq + t) * s.width() + head * s.head_dim;
        Real mean{};  // of dprobabilities, by the probabilities
        for (std::size_t j = first; j <= t; ++j) {
          const Real* value = sequence + j * s.packed() + s.value_offset(head);
          dprobabilities[j] = dot_product(from, value, s.head_dim);
          mean += probabilities[j] * dprobabilities[j];
        }
        const Real* query = sequence + t * s.packed() + s.query_offset(head);
        Real* dquery = dsequence + t * s.packed() + s.query_offset(head);
        for (std::size_t j = first; j <= t; ++j) {
          const Real dscore = probabilities[j] * (dprobabilities[j] - mean) * scale;
          const Real* key = sequence + j * s.packed() + s.key_offset(head);
          Real* dkey = dsequence + j * s.packed() + s.key_offset(head);
          Real* dvalue = dsequence + j * s.packed() + s.value_offset(head);
          for (std::size_t i = 0; i < s.head_dim; ++i) {
            dquery[i] += dscore * key[i];
            dkey[i] += dscore * query[i];
            dvalue[i] += probabilities[j] * from[i];
          }
        }
      }
    }
  }
}

}  // namespace llama_reference
