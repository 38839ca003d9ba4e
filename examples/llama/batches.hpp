// Batches in pinned memory: filled by the host while the device works on those before.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
#include <tessera/exact/random.hpp>

#include "cuda_check.hpp"
#include "documents.hpp"
#include "options.hpp"
#include "tokens.hpp"

namespace llama {

/// Pinned memory for `count` of T.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count) {
    require(cudaHostAlloc(&memory_, count * sizeof(T), cudaHostAllocPortable),
            "allocating pinned memory");
  }
  ~Pinned() { cudaFreeHost(memory_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* get() const { return static_cast<T*>(memory_); }

 private:
  void* memory_ = nullptr;
};

/// One rank's batches. Two steps' worth are kept, so that one is filled while the other is read.
class Batches {
 public:
  Batches(const Options& options, const TokenFile* file, std::size_t rank)
      : o_(options),
        file_(file),
        rank_(rank),
        memory_(kSlots * options.accumulate * 2 * options.rows()) {
    if (file != nullptr) order_.emplace(file->size(), options.sequence);
    if (!options.documents) return;
    documents_ = count_documents();
    starts_.emplace(kSlots * options.accumulate * (documents_ + 1));
  }

  /// That no batch of the run has more than, by what the data are; 0 without --documents.
  std::size_t documents() const { return documents_; }

  struct Batch {
    const std::int32_t* tokens;
    const std::int32_t* targets;
    const std::int32_t* documents;  ///< write_document_starts', or null
  };
  /// Fills the batch of a micro-step. What was filled two steps ago must have been used; with
  /// --graph, which has one place for each, the step before.
  Batch fill(std::size_t step, std::size_t micro_step) {
    const std::size_t slot = o_.graph ? 0 : step % kSlots;
    const std::size_t place = slot * o_.accumulate + micro_step;
    std::int32_t* const tokens = memory_.get() + place * 2 * o_.rows();
    std::int32_t* const targets = tokens + o_.rows();
    for (std::size_t b = 0; b < o_.batch; ++b) {
      const std::uint64_t sequence =
          ((step * o_.accumulate + micro_step) * o_.ranks + rank_) * o_.batch + b;
      for (std::size_t i = 0; i <= o_.sequence; ++i) {
        const std::int32_t token = token_of(sequence, i);
        if (i < o_.sequence) tokens[b * o_.sequence + i] = token;
        if (i > 0) targets[b * o_.sequence + i - 1] = token;
      }
    }
    if (!o_.documents) return {tokens, targets, nullptr};
    std::int32_t* const starts = starts_->get() + place * (documents_ + 1);
    write_document_starts({tokens, o_.rows()}, o_.sequence, end_of_document(),
                          {starts, documents_ + 1});
    return {tokens, targets, starts};
  }

 private:
  static constexpr std::size_t kSlots = 2;

  std::int32_t token_of(std::uint64_t sequence, std::size_t i) const {
    if (file_ != nullptr) return (*file_)[order_->first_token(sequence) + i];
    // A few batches over and over, so that the loss shows whether the model learns.
    const std::uint64_t repeated = sequence % repeated_sequences();
    return static_cast<std::int32_t>(tessera::random_bits(o_.seed, ~std::uint64_t{repeated}, i) %
                                     o_.model.vocabulary);
  }

  std::uint64_t repeated_sequences() const { return 4 * o_.batch * o_.ranks; }

  std::int32_t end_of_document() const { return static_cast<std::int32_t>(*o_.document_token); }

  /// As if all sequences of a batch were the one with the most.
  std::size_t count_documents() const {
    std::size_t most = 0;
    if (file_ != nullptr) {
      // The last token is a target only.
      most = most_documents(file_->size() - 1, o_.sequence, end_of_document(),
                            [&](std::size_t i) { return (*file_)[i]; });
    }
    for (std::uint64_t s = 0; file_ == nullptr && s < repeated_sequences(); ++s) {
      most = std::max(most, most_documents(o_.sequence, o_.sequence, end_of_document(),
                                           [&](std::size_t i) { return token_of(s, i); }));
    }
    return o_.batch * most;
  }

  const Options& o_;
  const TokenFile* file_;
  std::size_t rank_;
  Pinned<std::int32_t> memory_;
  std::optional<SequenceOrder> order_;
  std::size_t documents_ = 0;
  std::optional<Pinned<std::int32_t>> starts_;
};

}  // namespace llama
