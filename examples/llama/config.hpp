// The sizes of a Llama-3 model.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace llama {

struct Config {
  std::size_t layers = 4;
  std::size_t dim = 512;  ///< of the residual stream
  std::size_t ff = 1536;  ///< of the feed-forward network
  std::size_t heads = 8;
  std::size_t kv_heads = 4;  ///< keys and values: each serves heads / kv_heads of the heads
  std::size_t vocabulary = 128256;
  bool tied = false;  ///< the head's weights are the embedding's
  float rope_theta = 500000.0f;
  float norm_epsilon = 1e-5f;

  constexpr std::size_t head_dim() const { return dim / heads; }
  /// Width of a token's query, keys and values side by side.
  constexpr std::size_t qkv() const { return (heads + 2 * kv_heads) * head_dim(); }
  constexpr std::size_t attention() const { return heads * head_dim(); }
  constexpr std::size_t layer_parameters() const {
    return dim * (2 + qkv() + attention() + 3 * ff);
  }
  constexpr std::size_t embedding_parameters() const { return vocabulary * dim; }
  constexpr std::size_t parameters() const {
    return layers * layer_parameters() + dim + embedding_parameters() * (tied ? 1 : 2);
  }
  /// Of forward and backward, as PaLM's and torchtitan's formula counts them: 6 a parameter that is
  /// multiplied by, 12 layers dim sequence for attention without a discount for the causal mask;
  /// recomputation does not count.
  constexpr double flops_per_token(std::size_t sequence) const {
    const auto multiplied =
        static_cast<double>(layers * layer_parameters() + dim + embedding_parameters());
    return 6.0 * multiplied +
           12.0 * static_cast<double>(layers * attention()) * static_cast<double>(sequence);
  }
};

/// tiny, 1b, 3b or 8b.
constexpr std::optional<Config> config_named(std::string_view name) {
  if (name == "tiny") return Config{};
  if (name == "1b") {
    return Config{.layers = 16, .dim = 2048, .ff = 8192, .heads = 32, .kv_heads = 8};
  }
  if (name == "3b") {
    return Config{.layers = 28, .dim = 3072, .ff = 8192, .heads = 24, .kv_heads = 8};
  }
  if (name == "8b") {
    return Config{.layers = 32, .dim = 4096, .ff = 14336, .heads = 32, .kv_heads = 8};
  }
  return std::nullopt;
}

}  // namespace llama
