// Softmax cross-entropy of logits whose columns, a vocabulary, are shared out over ranks, on the
// host.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tessera/error.hpp"
#include "tessera/parallel/share.hpp"
#include "tessera/parallel/tensor_group.hpp"

namespace tessera {

/// What a rank knows of one row of logits by its own columns.
struct SoftmaxPart {
  float highest = -std::numeric_limits<float>::infinity();
  float sum = 0;     ///< of e^(logit - highest)
  float target = 0;  ///< the target's logit, where it is one of them
};

/// Replaces logits[n] by e^(logit - highest). `target`: an index into them, or beyond.
inline SoftmaxPart exponentials_of(std::uint64_t n, std::uint64_t target, float* logits) {
  SoftmaxPart part;
  if (target < n) part.target = logits[target];
  for (std::uint64_t i = 0; i < n; ++i) part.highest = std::max(part.highest, logits[i]);
  for (std::uint64_t i = 0; i < n; ++i) {
    logits[i] = std::exp(logits[i] - part.highest);
    part.sum += logits[i];  // a NaN, which no maximum shows, is in the sum
  }
  return part;
}

/// A row's softmax, of all ranks' parts in rank order: the same bits on all of them.
class JoinedSoftmax {
 public:
  /// parts[r * stride] is rank r's.
  JoinedSoftmax(const SoftmaxPart* parts, int ranks, std::size_t stride) {
    float highest = -std::numeric_limits<float>::infinity();
    for (int r = 0; r < ranks; ++r) highest = std::max(highest, at(parts, r, stride).highest);
    highest_ = highest;
    for (int r = 0; r < ranks; ++r) {
      const SoftmaxPart& part = at(parts, r, stride);
      if (part.sum == 0) continue;  // of no columns: e^(-inf - -inf) is not a number
      sum_ += static_cast<double>(part.sum) * rescale(part);
      target_ += part.target;
    }
  }

  double loss() const { return std::log(sum_) + (highest_ - target_); }
  /// What a rank's exponentials are multiplied by to be probabilities.
  double factor(const SoftmaxPart& own) const { return rescale(own) / sum_; }

 private:
  static const SoftmaxPart& at(const SoftmaxPart* parts, int rank, std::size_t stride) {
    return parts[static_cast<std::size_t>(rank) * stride];
  }
  double rescale(const SoftmaxPart& part) const {
    return std::exp(static_cast<double>(part.highest) - highest_);
  }

  double highest_ = 0;
  double sum_ = 0;
  double target_ = 0;
};

/// The losses of some rows, and how many of them counted.
struct RowLosses {
  double sum = 0;
  std::uint64_t count = 0;
};

/// Loss and gradient over a group's vocabulary, by one exchange of a SoftmaxPart a row. For
/// backends whose memory is the process's.
template <Backend B>
class VocabularyCrossEntropy {
 public:
  /// `rows`: the most of one call. `group` must outlive this.
  VocabularyCrossEntropy(TensorGroup<B>& group, std::size_t rows)
      : group_(&group), own_(rows), all_(rows * static_cast<std::size_t>(group.size())) {}

  /// Replaces logits[targets.size(), share.size], the columns `share` of the whole vocabulary, by
  /// `scale` times their gradient of the rows' summed losses. A negative target does not count: its
  /// row's gradient is zero. Other targets must be in some rank's share. Collective; targets are
  /// the same on all ranks, and so is the result. Error where there are more rows than announced.
  template <std::signed_integral Token>
  RowLosses operator()(std::span<const Token> targets, Share share, float scale, float* logits) {
    const std::size_t rows = targets.size();
    if (rows > own_.size()) {
      detail::fail("tessera: cross-entropy of ", rows, " rows, more than the ", own_.size(),
                   " that its constructor was told");
    }
    const auto index = [&](std::size_t row) {
      return static_cast<std::uint64_t>(targets[row]) - share.begin;  // beyond where it is not ours
    };
    for (std::size_t row = 0; row < rows; ++row) {
      float* const at = logits + row * share.size;
      own_[row] = targets[row] < 0 ? SoftmaxPart{} : exponentials_of(share.size, index(row), at);
    }
    group_->gather_equal(rows, own_.data(), all_.data());
    RowLosses losses;
    for (std::size_t row = 0; row < rows; ++row) {
      float* const at = logits + row * share.size;
      if (targets[row] < 0) {
        for (std::uint64_t i = 0; i < share.size; ++i) at[i] = 0;
        continue;
      }
      const JoinedSoftmax softmax(all_.data() + row, group_->size(), rows);
      losses.sum += softmax.loss();
      ++losses.count;
      const auto factor = static_cast<float>(scale * softmax.factor(own_[row]));
      for (std::uint64_t i = 0; i < share.size; ++i) at[i] *= factor;
      if (index(row) < share.size) at[index(row)] -= scale;
    }
    return losses;
  }

 private:
  TensorGroup<B>* group_;
  std::vector<SoftmaxPart> own_;
  std::vector<SoftmaxPart> all_;  ///< all ranks' rows, one rank's after the other's
};

}  // namespace tessera
