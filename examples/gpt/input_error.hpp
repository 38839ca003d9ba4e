// What the user gave us and we cannot work with, as one sentence.
#pragma once

#include <stdexcept>

namespace gpt {

struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gpt
