// The GPT of examples/gpt once more, in fp64 and as plainly as it can be written: forward only, its
// gradients are taken by finite differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gpt/config.hpp"
#include "gpt/embedding.hpp"

namespace reference {

using Doubles = std::vector<double>;

/// y[rows, out] = x[rows, in] w[out, in]^T + b
inline Doubles linear(const Doubles& x, std::size_t in, const double* w, const double* b,
                      std::size_t out) {
  const std::size_t rows = x.size() / in;
  Doubles y(rows * out);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = b == nullptr ? 0.0 : b[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[row * in + i] * w[o * in + i];
      y[row * out + o] = sum;
    }
  }
  return y;
}

inline Doubles layer_norm(const Doubles& x, std::size_t width, const double* w, const double* b) {
  Doubles y(x.size());
  for (std::size_t start = 0; start < x.size(); start += width) {
    double mean = 0.0;
    double square = 0.0;
    for (std::size_t i = 0; i < width; ++i) mean += x[start + i];
    mean /= static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) square += std::pow(x[start + i] - mean, 2.0);
    const double deviation = std::sqrt(square / static_cast<double>(width) + 1e-5);
    for (std::size_t i = 0; i < width; ++i) {
      y[start + i] = (x[start + i] - mean) / deviation * w[i] + b[i];
    }
  }
  return y;
}

inline double gelu(double x) {
  const double inner = std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

inline Doubles attention(const Doubles& qkv, std::size_t batch, std::size_t context,
                         std::size_t heads, std::size_t width) {
  const std::size_t size = width / heads;
  Doubles out(batch * context * width);
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t h = 0; h < heads; ++h) {
      const auto part = [&](std::size_t which, std::size_t t) {
        return qkv.data() + (b * context + t) * 3 * width + which * width + h * size;
      };
      for (std::size_t t = 0; t < context; ++t) {
        Doubles weight(t + 1);
        double total = 0.0;
        for (std::size_t s = 0; s <= t; ++s) {
          double score = 0.0;
          for (std::size_t i = 0; i < size; ++i) score += part(0, t)[i] * part(1, s)[i];
          weight[s] = std::exp(score / std::sqrt(static_cast<double>(size)));
          total += weight[s];
        }
        double* to = out.data() + (b * context + t) * width + h * size;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t i = 0; i < size; ++i) to[i] += weight[s] / total * part(2, s)[i];
        }
      }
    }
  }
  return out;
}

/// The sum of the rows' losses; a negative target does not count.
inline double cross_entropy(const Doubles& logits, std::size_t vocabulary,
                            const gpt::Token* targets) {
  double loss = 0.0;
  for (std::size_t row = 0; row < logits.size() / vocabulary; ++row) {
    if (targets[row] < 0) continue;
    const double* of = logits.data() + row * vocabulary;
    double total = 0.0;
    for (std::size_t i = 0; i < vocabulary; ++i) total += std::exp(of[i]);
    loss += std::log(total) - of[targets[row]];
  }
  return loss;
}

inline void add(Doubles& to, const Doubles& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

/// The loss of a model whose parameters lie one after the other: embedding, blocks, final norm.
inline double loss(const gpt::Config& c, const Doubles& parameters, std::size_t batch,
                   const gpt::Token* tokens, const gpt::Token* targets) {
  const double* at = parameters.data();
  const auto take = [&](std::size_t n) {
    const double* const tensor = at;
    at += n;
    return tensor;
  };
  const std::size_t width = c.width;
  const double* token = take(c.vocabulary * width);
  const double* position = take(c.context * width);
  Doubles x(batch * c.context * width);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / width;
    x[i] = token[static_cast<std::size_t>(tokens[row]) * width + i % width] +
           position[row % c.context * width + i % width];
  }
  for (std::size_t layer = 0; layer < c.layers; ++layer) {
    const double* ln1_w = take(width);
    Doubles y = layer_norm(x, width, ln1_w, take(width));
    const double* qkv_w = take(3 * width * width);
    y = linear(y, width, qkv_w, take(3 * width), 3 * width);
    y = attention(y, batch, c.context, c.heads, width);
    const double* proj_w = take(width * width);
    add(x, linear(y, width, proj_w, take(width), width));
    const double* ln2_w = take(width);
    y = layer_norm(x, width, ln2_w, take(width));
    const double* fc_w = take(c.hidden() * width);
    y = linear(y, width, fc_w, take(c.hidden()), c.hidden());
    for (double& value : y) value = gelu(value);
    const double* fc_proj_w = take(width * c.hidden());
    add(x, linear(y, c.hidden(), fc_proj_w, take(width), width));
  }
  const double* norm_w = take(width);
  const Doubles y = layer_norm(x, width, norm_w, take(width));
  return cross_entropy(linear(y, width, token, nullptr, c.vocabulary), c.vocabulary, targets);
}

}  // namespace reference
