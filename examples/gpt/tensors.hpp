// The model's units and their tensors: what is sharded, how it starts, and where it is.
//
// A unit is a struct of fields, one per tensor, whatever is known of a tensor: its shape, the
// pointer to its weights, the Gradient that backward fills. `zip` walks the fields of several such
// structs together, in the one order that the trainer registers them in.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <tessera/tensor/slice.hpp>

#include "config.hpp"
#include "gradient.hpp"

namespace gpt {

/// How a tensor is made: its name within the unit, its extents on this rank, the deviation that it
/// starts with (0: all `fill`), whether weight decay applies to it, and which part of a larger
/// tensor it is where other ranks have the rest.
struct TensorInfo {
  const char* name = "";
  std::size_t rows = 0;
  std::size_t columns = 1;
  float deviation = 0.0f;
  float fill = 0.0f;
  bool decays = false;
  bool sliced = false;
  tessera::Slice slice;

  constexpr std::size_t size() const { return rows * columns; }
};

/// Token and position embedding. The token table is the head's weight too.
template <class T>
struct EmbeddingTensors {
  T token, position;

  template <class F, class... Units>
  static void zip(F& f, Units&... units) {
    f(units.token...);
    f(units.position...);
  }
};

template <class T>
struct BlockTensors {
  T ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b;
  T ln2_w, ln2_b, fc_w, fc_b, fc_proj_w, fc_proj_b;

  template <class F, class... Units>
  static void zip(F& f, Units&... units) {
    f(units.ln1_w...);
    f(units.ln1_b...);
    f(units.qkv_w...);
    f(units.qkv_b...);
    f(units.proj_w...);
    f(units.proj_b...);
    f(units.ln2_w...);
    f(units.ln2_b...);
    f(units.fc_w...);
    f(units.fc_b...);
    f(units.fc_proj_w...);
    f(units.fc_proj_b...);
  }
};

/// The final layer norm, and the token table once more.
template <class T>
struct HeadTensors {
  T norm_w, norm_b, token;

  template <class F, class... Units>
  static void zip(F& f, Units&... units) {
    f(units.norm_w...);
    f(units.norm_b...);
    f(units.token...);
  }
};

/// Calls f with the first field of each unit, then with the second of each, and so on.
template <class F, class First, class... Rest>
void zip(F&& f, First& first, Rest&... rest) {
  First::zip(f, first, rest...);
}

template <class P>
using EmbeddingWeights = EmbeddingTensors<P*>;
template <class P>
using EmbeddingGradients = EmbeddingTensors<Gradient<P>>;
template <class P>
using BlockWeights = BlockTensors<P*>;
template <class P>
using BlockGradients = BlockTensors<Gradient<P>>;
template <class P>
using HeadWeights = HeadTensors<P*>;
template <class P>
using HeadGradients = HeadTensors<Gradient<P>>;

inline constexpr float kDeviation = 0.02f;

namespace detail {
constexpr TensorInfo matrix(const char* name, std::size_t rows, std::size_t columns, float scale) {
  return {name, rows, columns, scale, 0.0f, true, false, {}};
}
constexpr TensorInfo vector(const char* name, std::size_t size, float fill) {
  return {name, size, 1, 0.0f, fill, false, false, {}};
}

/// The rows of each of `blocks` parts one below the other, or the columns, that `share` of `whole`
/// is. What one rank has all of is not a slice.
constexpr TensorInfo own_rows(TensorInfo info, tessera::Share share, std::uint64_t whole,
                              std::uint64_t blocks = 1) {
  info.rows = share.size * blocks;
  info.sliced = share.size != whole;
  info.slice = {0, share.begin, whole, blocks};
  return info;
}
constexpr TensorInfo own_columns(TensorInfo info, tessera::Share share, std::uint64_t whole) {
  info.columns = share.size;
  info.sliced = share.size != whole;
  info.slice = {1, share.begin, whole, 1};
  return info;
}

constexpr TensorInfo token_table(const Config& c) {
  return own_rows(matrix("token", c.vocabulary, c.width, kDeviation), c.own_vocabulary(),
                  c.vocabulary);
}
}  // namespace detail

inline EmbeddingTensors<TensorInfo> embedding_info(const Config& c) {
  return {detail::token_table(c), detail::matrix("position", c.context, c.width, kDeviation)};
}

/// As in GPT-2: what is added to the residual stream starts smaller the more layers add to it.
inline BlockTensors<TensorInfo> block_info(const Config& c) {
  using detail::matrix;
  using detail::own_columns;
  using detail::own_rows;
  using detail::vector;
  // Whole heads of queries, keys and values, which are three parts of the rows of qkv.
  const tessera::Share heads = c.own_heads();
  const tessera::Share attended{heads.begin * c.head_width(), heads.size * c.head_width()};
  const tessera::Share hidden = c.own_hidden();
  const float residual = kDeviation / std::sqrt(2.0f * static_cast<float>(c.layers));
  return {vector("ln1.weight", c.width, 1.0f),
          vector("ln1.bias", c.width, 0.0f),
          own_rows(matrix("qkv.weight", 3 * c.width, c.width, kDeviation), attended, c.width, 3),
          own_rows(vector("qkv.bias", 3 * c.width, 0.0f), attended, c.width, 3),
          own_columns(matrix("proj.weight", c.width, c.width, residual), attended, c.width),
          vector("proj.bias", c.width, 0.0f),
          vector("ln2.weight", c.width, 1.0f),
          vector("ln2.bias", c.width, 0.0f),
          own_rows(matrix("fc.weight", c.hidden(), c.width, kDeviation), hidden, c.hidden()),
          own_rows(vector("fc.bias", c.hidden(), 0.0f), hidden, c.hidden()),
          own_columns(matrix("fc_proj.weight", c.width, c.hidden(), residual), hidden, c.hidden()),
          vector("fc_proj.bias", c.width, 0.0f)};
}

inline HeadTensors<TensorInfo> head_info(const Config& c) {
  return {detail::vector("norm.weight", c.width, 1.0f), detail::vector("norm.bias", c.width, 0.0f),
          detail::token_table(c)};
}

}  // namespace gpt
