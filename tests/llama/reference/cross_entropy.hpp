// The mean over rows of -log softmax(logits)[target].
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace llama_reference {

/// log(sum(exp(row))), by way of the largest element.
template <class Real>
Real log_sum_of_exponentials(const Real* row, std::size_t n) {
  const Real largest = *std::max_element(row, row + n);
  Real sum{};
  for (std::size_t i = 0; i < n; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

/// Summed in double whatever Real is. row_losses [rows] is written unless it is null.
template <class Real>
double cross_entropy_loss(std::size_t rows, std::size_t vocab, const Real* logits,
                          const std::uint32_t* targets, Real* row_losses) {
  double total = 0.0;
  for (std::size_t row = 0; row < rows; ++row) {
    const Real* at = logits + row * vocab;
    const Real loss = log_sum_of_exponentials(at, vocab) - at[targets[row]];
    if (row_losses != nullptr) row_losses[row] = loss;
    total += static_cast<double>(loss);
  }
  return total / static_cast<double>(rows);
}

/// The gradient of the mean. dlogits may be `logits`.
template <class Real>
void cross_entropy_backward(std::size_t rows, std::size_t vocab, const Real* logits,
                            const std::uint32_t* targets, Real* dlogits) {
  const Real scale = Real{1} / static_cast<Real>(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    const Real* at = logits + row * vocab;
    const Real log_sum = log_sum_of_exponentials(at, vocab);
    for (std::size_t i = 0; i < vocab; ++i) {
      const Real hit = i == targets[row] ? Real{1} : Real{};
      dlogits[row * vocab + i] = (std::exp(at[i] - log_sum) - hit) * scale;
    }
  }
}

}  // namespace llama_reference
