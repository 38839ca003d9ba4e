// The learning rate over the run: linear warm-up, then a cosine down to a tenth.
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>

namespace gpt {

struct CosineSchedule {
  static constexpr double kFloor = 0.1;

  double peak;
  std::size_t warmup;  // steps; the last of them is the first at the peak
  std::size_t steps;

  float operator()(std::size_t step) const {
    if (step < warmup) {
      return static_cast<float>(peak * static_cast<double>(step + 1) / static_cast<double>(warmup));
    }
    if (step + 1 >= steps) return static_cast<float>(peak * (steps > warmup + 1 ? kFloor : 1.0));
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(steps - 1 - warmup);
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    return static_cast<float>(peak * (kFloor + (1.0 - kFloor) * cosine));
  }
};

}  // namespace gpt
