// Rotary position embedding in its rotate-half form: element i of a head's first half and element i
// of its second are turned, as a point of the plane, by position * theta^(-2i / head_dim).
#pragma once

#include <cmath>
#include <cstddef>

#include "attention_shape.hpp"

namespace llama_reference {

inline constexpr double kRopeTheta = 500000.0;

/// Turns queries and keys of packed rows in place, by `sign` times the angle; values stay.
template <class Real>
void rope_turn(const AttentionShape& s, double sign, Real* qkv) {
  const std::size_t half = s.head_dim / 2;
  for (std::size_t position = 0; position < s.seq; ++position) {
    for (std::size_t i = 0; i < half; ++i) {
      const double power = -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim);
      const double angle = static_cast<double>(position) * std::pow(kRopeTheta, power);
      const auto cosine = static_cast<Real>(std::cos(angle));
      const auto sine = static_cast<Real>(sign * std::sin(angle));
      for (std::size_t b = 0; b < s.batch; ++b) {
        Real* row = qkv + (b * s.seq + position) * s.packed();
        for (std::size_t head = 0; head < s.heads + s.kv_heads; ++head) {
          Real& first = row[head * s.head_dim + i];
          Real& second = row[head * s.head_dim + half + i];
          const Real turned = first * cosine - second * sine;
          second = second * cosine + first * sine;
          first = turned;
        }
      }
    }
  }
}

template <class Real>
void rope_forward(const AttentionShape& s, Real* qkv) {
  rope_turn(s, 1.0, qkv);
}

/// The gradient turns back: a rotation's transpose is its inverse.
template <class Real>
void rope_backward(const AttentionShape& s, Real* dqkv) {
  rope_turn(s, -1.0, dqkv);
}

}  // namespace llama_reference
