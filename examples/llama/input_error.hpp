#pragma once

#include <stdexcept>

namespace llama {

/// What the user can put right: the message says how.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace llama
