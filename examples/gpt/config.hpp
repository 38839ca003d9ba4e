// The sizes of the model, and what follows from them.
#pragma once

#include <cstddef>
#include <tessera/parallel/share.hpp>

namespace gpt {

/// Which of the ranks that compute each layer together this is.
struct TensorPlace {
  int rank = 0;
  int ranks = 1;
};

struct Config {
  std::size_t vocabulary = 256;  // bytes
  std::size_t context = 64;
  std::size_t layers = 4;
  std::size_t heads = 4;
  std::size_t width = 128;
  TensorPlace tensor = {};  // what follows is of the whole model, but for `own` parts

  constexpr std::size_t head_width() const { return width / heads; }
  constexpr std::size_t hidden() const { return 4 * width; }

  /// This rank's heads, columns of the MLP and tokens.
  constexpr tessera::Share own_heads() const { return own(heads); }
  constexpr tessera::Share own_hidden() const { return own(hidden()); }
  constexpr tessera::Share own_vocabulary() const { return own(vocabulary); }

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

 private:
  constexpr tessera::Share own(std::size_t whole) const {
    return tessera::share_of(whole, tensor.ranks, tensor.rank);
  }
};

}  // namespace gpt
