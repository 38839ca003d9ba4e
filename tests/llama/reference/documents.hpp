// Which document a row belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llama_reference {

/// The row at which each row's document starts: the token `end` is a document's last, and none goes
/// beyond its sequence.
inline std::vector<std::size_t> document_of_rows(std::span<const std::uint32_t> tokens,
                                                 std::size_t seq, std::uint32_t end) {
  std::vector<std::size_t> starts(tokens.size());
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const bool goes_on = row % seq != 0 && tokens[row - 1] != end;
    starts[row] = goes_on ? starts[row - 1] : row;
  }
  return starts;
}

}  // namespace llama_reference
