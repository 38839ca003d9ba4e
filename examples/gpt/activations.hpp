// What a block's backward pass needs of its forward pass.
#pragma once

#include <cstddef>

#include "layer_norm.hpp"
#include "shapes.hpp"

namespace gpt {

/// Recomputing blocks share one of these.
struct BlockActivations {
  NormStatistics norm1, norm2;
  float *normed1, *qkv, *probabilities, *attended;
  float *middle, *normed2, *fc, *gelu;

  template <class AnyArena>
  static BlockActivations carve(AnyArena& arena, BlockShape s) {
    const std::size_t rows = s.rows();
    BlockActivations a;
    a.norm1 = {arena.take(rows), arena.take(rows)};
    a.norm2 = {arena.take(rows), arena.take(rows)};
    a.normed1 = arena.take(rows * s.width);
    a.qkv = arena.take(rows * 3 * s.width);
    a.probabilities = arena.take(s.attention().probabilities());
    a.attended = arena.take(rows * s.width);
    a.middle = arena.take(rows * s.width);
    a.normed2 = arena.take(rows * s.width);
    a.fc = arena.take(rows * s.hidden());
    a.gelu = arena.take(rows * s.hidden());
    return a;
  }
};

}  // namespace gpt
