// What the model reads and predicts: bytes of text.
#pragma once

#include <cstdint>

namespace gpt {

using Token = std::int32_t;

/// A target that does not count: the padding of the last, shorter window of a text.
inline constexpr Token kIgnored = -1;

}  // namespace gpt
