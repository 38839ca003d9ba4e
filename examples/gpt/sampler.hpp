// Text from the trained model, one byte after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "random.hpp"
#include "token.hpp"

namespace gpt {

/// A byte with probability proportional to e^(logit / temperature); `uniform` is from 0 to below 1.
/// At temperature 0, the likeliest.
inline std::size_t choose(const float* logits, std::size_t vocabulary, double temperature,
                          double uniform) {
  const float* const best = std::max_element(logits, logits + vocabulary);
  if (temperature <= 0.0) return static_cast<std::size_t>(best - logits);
  std::vector<double> upto(vocabulary);
  double total = 0.0;
  for (std::size_t i = 0; i < vocabulary; ++i) {
    total += std::exp((static_cast<double>(logits[i]) - *best) / temperature);
    upto[i] = total;
  }
  const auto at = std::upper_bound(upto.begin(), upto.end(), uniform * total);
  return std::min(static_cast<std::size_t>(at - upto.begin()), vocabulary - 1);
}

/// Continues `prompt`, which must not be empty, by `count` bytes. `forward(tokens)` runs the model
/// on `context` tokens and returns their logits. Every rank that calls this with the same weights
/// and seed gets the same text, so all can run the model together.
template <class Forward>
std::string sample_text(Forward&& forward, std::string_view prompt, std::size_t count,
                        std::size_t context, std::size_t vocabulary, double temperature,
                        std::uint64_t seed) {
  std::string text(prompt);
  std::vector<Token> tokens(context);
  for (std::size_t n = 0; n < count; ++n) {
    // Attention is causal: what stands behind the last byte does not reach its logits.
    const std::size_t seen = std::min(text.size(), context);
    for (std::size_t i = 0; i < context; ++i) {
      const std::size_t from = text.size() - seen + i;
      tokens[i] = i < seen ? static_cast<Token>(static_cast<unsigned char>(text[from])) : 0;
    }
    const float* logits = forward(static_cast<const Token*>(tokens.data()));
    const double uniform = unit_interval(random_bits(seed, Stream::text, n));
    text += static_cast<char>(
        choose(logits + (seen - 1) * vocabulary, vocabulary, temperature, uniform));
  }
  return text.substr(prompt.size());
}

/// For a terminal: bytes that are neither printable ASCII nor white space become '?'.
inline std::string printable(std::string text) {
  for (char& c : text) {
    const bool fine = (c >= ' ' && c <= '~') || c == '\n' || c == '\t';
    if (!fine) c = '?';
  }
  return text;
}

}  // namespace gpt
