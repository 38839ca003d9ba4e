// The sizes of the model, and what follows from them.
#pragma once

#include <cstddef>

namespace gpt {

struct Config {
  std::size_t vocabulary = 256;  // bytes
  std::size_t context = 64;
  std::size_t layers = 4;
  std::size_t heads = 4;
  std::size_t width = 128;

  constexpr std::size_t head_width() const { return width / heads; }
  constexpr std::size_t hidden() const { return 4 * width; }

  /// Elements of one block: two layer norms, qkv, projection and the two layers of the MLP.
  constexpr std::size_t block_parameters() const {
    const std::size_t norms = 4 * width;
    const std::size_t attention = 4 * width * width + 4 * width;
    const std::size_t mlp = 2 * hidden() * width + hidden() + width;
    return norms + attention + mlp;
  }

  /// The head is tied to the token embedding, so it only adds the final layer norm.
  constexpr std::size_t parameters() const {
    return (vocabulary + context + 2) * width + layers * block_parameters();
  }
};

}  // namespace gpt
