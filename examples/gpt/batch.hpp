// What a rank computes on: windows of the text, each byte's target being the byte after it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "random.hpp"
#include "token.hpp"

namespace gpt {

struct Batch {
  Batch(std::size_t sequences, std::size_t length)
      : context(length), tokens(sequences * length), targets(sequences * length) {}

  std::size_t sequences() const { return tokens.size() / context; }

  std::size_t context;
  std::vector<Token> tokens;
  std::vector<Token> targets;
};

/// One window into sequence `at`. Past the end of the text it is padded, and padding has no target.
inline void put_window(std::string_view text, std::size_t start, std::size_t at, Batch& batch) {
  for (std::size_t i = 0; i < batch.context; ++i) {
    const std::size_t from = start + i;
    const bool counts = from + 1 < text.size();
    const auto byte = [&](std::size_t index) {
      return static_cast<Token>(static_cast<unsigned char>(text[index]));
    };
    batch.tokens[at * batch.context + i] = counts ? byte(from) : 0;
    batch.targets[at * batch.context + i] = counts ? byte(from + 1) : kIgnored;
  }
}

/// Samples `first`, `first` + 1, ... of the global batch of `step`. A sample is a function of seed,
/// step and index alone: however many ranks share a batch, together they see the same one.
inline void sample_batch(std::string_view text, std::uint64_t seed, std::uint64_t step,
                         std::uint64_t first, Batch& batch) {
  const std::uint64_t starts = text.size() - batch.context;
  for (std::size_t i = 0; i < batch.sequences(); ++i) {
    const std::uint64_t bits = random_bits(seed, Stream::batches, step, first + i);
    put_window(text, static_cast<std::size_t>(below(starts, bits)), i, batch);
  }
}

/// A rank's part of the global batch is contiguous, and so is a micro-step's part of a rank's.
struct BatchShare {
  std::size_t batch, ranks, accumulate;

  std::size_t sequences() const { return batch / (ranks * accumulate); }
  std::size_t first(std::size_t rank, std::size_t micro_step) const {
    return (rank * accumulate + micro_step) * sequences();
  }
};

/// The whole of a text in windows that do not overlap, dealt out to ranks in rounds. All ranks take
/// part in every round, since gathering weights takes all of them; those left over get padding.
class Windows {
 public:
  Windows(std::string_view text, std::size_t context, std::size_t ranks, std::size_t sequences)
      : text_(text), context_(context), ranks_(ranks), sequences_(sequences) {}

  std::size_t count() const { return (text_.size() - 1 + context_ - 1) / context_; }
  std::size_t rounds() const {
    const std::size_t a_round = ranks_ * sequences_;
    return (count() + a_round - 1) / a_round;
  }

  void fill(std::size_t round, std::size_t rank, Batch& batch) const {
    const std::size_t first = (round * ranks_ + rank) * sequences_;
    for (std::size_t i = 0; i < sequences_; ++i) {
      put_window(text_, std::min((first + i) * context_, text_.size()), i, batch);
    }
  }

 private:
  std::string_view text_;
  std::size_t context_;
  std::size_t ranks_;
  std::size_t sequences_;
};

}  // namespace gpt
