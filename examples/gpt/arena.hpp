// One aligned allocation that is carved into arrays once, when the model is built.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace gpt {

/// Carve twice with the same code: an empty arena counts, a second one of that size hands out.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::size_t floats)
      : memory_(static_cast<float*>(::operator new(floats * sizeof(float), kAlignment))) {}

  float* take(std::size_t floats) {
    const std::size_t offset = used_;
    used_ += (floats + kStep - 1) / kStep * kStep;
    return memory_ ? memory_.get() + offset : nullptr;
  }

  std::size_t used() const { return used_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr std::size_t kStep = 16;  // floats: every array starts on a cache line

  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };

  std::unique_ptr<float, Free> memory_;
  std::size_t used_ = 0;
};

}  // namespace gpt
