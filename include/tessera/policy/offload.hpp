// Offload: on which tier the states live between uses.
#pragma once

#include <concepts>

#include "tessera/policy/description.hpp"

namespace tessera {

/// An offload policy is a type with `static constexpr OffloadDescription describe()`.
template <class O>
concept OffloadPolicy = requires {
  { O::describe() } -> std::same_as<OffloadDescription>;
};

/// Nothing leaves the device.
struct OnDevice {
  static constexpr OffloadDescription describe() { return {.name = "on-device"}; }
};

static_assert(OffloadPolicy<OnDevice>);

}  // namespace tessera
