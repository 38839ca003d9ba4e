#pragma once

#include <cstddef>

namespace llama_reference {

/// Rows of tokens, sequence after sequence; in a row all query heads, then keys, then values.
struct AttentionShape {
  std::size_t batch;
  std::size_t seq;
  std::size_t heads;
  std::size_t kv_heads;
  std::size_t head_dim;
  /// [rows], the row at which each row's document starts: it sees none before. Null: its
  /// sequence's.
  const std::size_t* documents = nullptr;

  std::size_t rows() const { return batch * seq; }
  std::size_t packed() const { return (heads + 2 * kv_heads) * head_dim; }
  std::size_t width() const { return heads * head_dim; }

  /// The first position that a position of a sequence sees.
  std::size_t first_seen(std::size_t sequence, std::size_t position) const {
    return documents == nullptr ? 0 : documents[sequence * seq + position] - sequence * seq;
  }

  std::size_t query_offset(std::size_t head) const { return head * head_dim; }
  std::size_t key_offset(std::size_t head) const { return (heads + kv_head(head)) * head_dim; }
  std::size_t value_offset(std::size_t head) const {
    return (heads + kv_heads + kv_head(head)) * head_dim;
  }

 private:
  std::size_t kv_head(std::size_t head) const { return head / (heads / kv_heads); }
};

}  // namespace llama_reference
