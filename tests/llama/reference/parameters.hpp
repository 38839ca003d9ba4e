// The model's parameters: their order, names, sizes and first values.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shape.hpp"
#include "tessera/exact/random.hpp"

namespace llama_reference {

struct Parameter {
  std::string name;
  std::size_t rows;     ///< 1 for the weights of a norm
  std::size_t columns;  ///< matrices are [out, in], row-major
  float deviation;      ///< of the first values, or 0: they are 1

  std::size_t size() const { return rows * columns; }
  bool is_norm() const { return deviation == 0.0f; }
};

/// Where a layer's parameters are, from `first_of_layer`.
enum LayerParameter : std::size_t { kAttentionNorm, kQkv, kOut, kFfnNorm, kGateUp, kDown };

inline constexpr std::size_t kEmbedding = 0;
inline std::size_t first_of_layer(std::size_t layer) { return 1 + 6 * layer; }
inline std::size_t final_norm(const Shape& shape) { return first_of_layer(shape.layers); }
inline std::size_t head(const Shape& shape) {
  return shape.tied ? kEmbedding : final_norm(shape) + 1;
}

inline std::vector<Parameter> parameters_of(const Shape& s) {
  constexpr float kDeviation = 0.02f;
  std::vector<Parameter> all{{"tok_embeddings", s.vocab, s.dim, kDeviation}};
  for (std::size_t i = 0; i < s.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    all.push_back({layer + "attention_norm", 1, s.dim, 0.0f});
    all.push_back({layer + "wqkv", s.packed(), s.dim, kDeviation});
    all.push_back({layer + "wo", s.dim, s.heads * s.head_dim(), kDeviation});
    all.push_back({layer + "ffn_norm", 1, s.dim, 0.0f});
    all.push_back({layer + "w13", 2 * s.ff, s.dim, kDeviation});
    all.push_back({layer + "w2", s.dim, s.ff, kDeviation});
  }
  all.push_back({"norm", 1, s.dim, 0.0f});
  if (!s.tied) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(s.dim));
    all.push_back({"output", s.vocab, s.dim, static_cast<float>(deviation)});
  }
  return all;
}

/// The first values of parameter number `id`. The product is taken in fp32 whatever Real is, so
/// that all precisions begin at the same numbers.
template <class Real>
std::vector<Real> first_values(const Parameter& parameter, std::uint64_t seed, std::uint64_t id) {
  std::vector<Real> values(parameter.size(), Real{1});
  if (parameter.is_norm()) return values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<Real>(parameter.deviation * tessera::random_normal(seed, id, i));
  }
  return values;
}

}  // namespace llama_reference
