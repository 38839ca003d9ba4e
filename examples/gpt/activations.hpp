// What a block's backward pass needs of its forward pass.
#pragma once

#include <cstddef>

#include "layer_norm.hpp"
#include "shapes.hpp"

namespace gpt {

/// Recomputing blocks share one of these. Norms and the residual stream have `stream_rows`, as many
/// as the shape where nothing else is said.
struct BlockActivations {
  NormStatistics norm1, norm2;
  float *normed1, *qkv, *probabilities, *attended;
  float *middle, *normed2, *fc, *gelu;

  template <class AnyArena>
  static BlockActivations carve(AnyArena& arena, BlockShape s) {
    return carve(arena, s, s.rows());
  }
  template <class AnyArena>
  static BlockActivations carve(AnyArena& arena, BlockShape s, std::size_t stream_rows) {
    const std::size_t rows = s.rows();
    BlockActivations a;
    a.norm1 = {arena.take(stream_rows), arena.take(stream_rows)};
    a.norm2 = {arena.take(stream_rows), arena.take(stream_rows)};
    a.normed1 = arena.take(stream_rows * s.width);
    a.qkv = arena.take(rows * s.qkv().out);
    a.probabilities = arena.take(s.attention().probabilities());
    a.attended = arena.take(rows * s.own_width);
    a.middle = arena.take(stream_rows * s.width);
    a.normed2 = arena.take(stream_rows * s.width);
    a.fc = arena.take(rows * s.hidden());
    a.gelu = arena.take(rows * s.hidden());
    return a;
  }
};

}  // namespace gpt
