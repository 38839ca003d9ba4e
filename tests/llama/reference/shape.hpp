#pragma once

#include <cstddef>

namespace llama_reference {

/// The sizes of a model. Query head h attends with key-value head h / (heads / kv_heads).
struct Shape {
  std::size_t layers = 2;
  std::size_t dim = 64;
  std::size_t ff = 128;
  std::size_t heads = 4;
  std::size_t kv_heads = 2;
  std::size_t vocab = 256;
  bool tied = false;  ///< the head is the transposed token embedding

  std::size_t head_dim() const { return dim / heads; }
  /// A row of packed queries, keys and values: all query heads, then keys, then values.
  std::size_t packed() const { return (heads + 2 * kv_heads) * head_dim(); }

  /// What is wrong with the sizes, or null.
  const char* problem() const {
    if (layers == 0 || dim == 0 || ff == 0 || vocab == 0) return "a size is 0";
    if (heads == 0 || dim % heads != 0) return "heads do not divide dim";
    if (kv_heads == 0 || heads % kv_heads != 0) return "key-value heads do not divide heads";
    if (head_dim() % 2 != 0) return "the dimension of a head is odd: it cannot be rotated";
    return nullptr;
  }
};

}  // namespace llama_reference
