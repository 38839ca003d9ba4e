// Documents that sequences are packed of: attention need not cross from one to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace llama {

/// Where the documents of a batch start, ascending: at each sequence's first token, and after each
/// token `end` but a sequence's last. The places of `starts` that are left over become the number
/// of tokens, so that two neighbours are always the bounds of a document, which may be empty.
/// Returns how many documents there are; `starts` needs one place more.
inline std::size_t write_document_starts(std::span<const std::int32_t> tokens, std::size_t sequence,
                                         std::int32_t end, std::span<std::int32_t> starts) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i % sequence != 0 && tokens[i - 1] != end) continue;
    if (count + 1 >= starts.size()) {
      throw std::length_error("a batch has more documents than there is room for");
    }
    starts[count++] = static_cast<std::int32_t>(i);
  }
  std::fill(starts.begin() + static_cast<std::ptrdiff_t>(count), starts.end(),
            static_cast<std::int32_t>(tokens.size()));
  return count;
}

/// The starts of a batch whose sequences are a document each, among `documents` places and one.
inline std::vector<std::int32_t> whole_sequences(std::size_t batch, std::size_t sequence,
                                                 std::size_t documents) {
  if (documents < batch) throw std::invalid_argument("every sequence is a document at the least");
  std::vector<std::int32_t> starts;
  for (std::size_t i = 0; i <= documents; ++i) {
    starts.push_back(static_cast<std::int32_t>(std::min(i, batch) * sequence));
  }
  return starts;
}

/// The most documents that `sequence` neighbours of `count` tokens are of; token(i) is the i-th.
template <class Token>
std::size_t most_documents(std::size_t count, std::size_t sequence, std::int32_t end,
                           Token&& token) {
  std::size_t ends = 0, most = 0;  // a sequence's last token ends nothing in it
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (token(i) == end) ++ends;
    if (i + 1 >= sequence && token(i + 1 - sequence) == end) --ends;
    most = std::max(most, ends);
  }
  return most + 1;
}

}  // namespace llama
