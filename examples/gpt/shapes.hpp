// How much a call works on, layer by layer.
#pragma once

#include <cmath>
#include <cstddef>

namespace gpt {

struct LinearShape {
  std::size_t rows;
  std::size_t in;
  std::size_t out;
};

struct AttentionShape {
  std::size_t batch;
  std::size_t context;
  std::size_t heads;
  std::size_t width;

  std::size_t head_width() const { return width / heads; }
  std::size_t packed() const { return 3 * width; }
  /// Elements of the probabilities that forward keeps for backward.
  std::size_t probabilities() const { return batch * heads * context * context; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_width())); }
};

/// The sequences of one micro-step on this rank. `heads`, and the widths of attention and of the
/// MLP, are this rank's part of the layer, which is all of it where nothing else is said.
struct BlockShape {
  std::size_t batch;
  std::size_t context;
  std::size_t heads;
  std::size_t width;
  std::size_t own_width = width;
  std::size_t own_hidden = 4 * width;

  std::size_t rows() const { return batch * context; }
  std::size_t hidden() const { return own_hidden; }
  AttentionShape attention() const { return {batch, context, heads, own_width}; }
  LinearShape qkv() const { return {rows(), width, 3 * own_width}; }
  LinearShape proj() const { return {rows(), own_width, width}; }
  LinearShape fc() const { return {rows(), width, hidden()}; }
  LinearShape fc_proj() const { return {rows(), hidden(), width}; }
};

}  // namespace gpt
