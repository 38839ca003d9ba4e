// Where backward leaves a parameter's gradient.
#pragma once

namespace gpt {

/// Where a gradient goes: into memory that still holds an earlier micro-step's gradient
/// (`accumulate`), or over memory whose content means nothing and must not be read.
template <class P>
struct Gradient {
  P* data = nullptr;
  bool accumulate = false;
};

}  // namespace gpt
