// A loss as the ranks add it up.
#pragma once

#include <cstddef>

namespace gpt {

/// The sum of the losses, and over how many targets. The mean is left to whoever has all the sums.
struct LossSum {
  double sum = 0.0;
  std::size_t count = 0;

  double mean() const { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  LossSum& operator+=(LossSum other) {
    sum += other.sum;
    count += other.count;
    return *this;
  }
};

}  // namespace gpt
