#pragma once

#include <cstdint>

#include "tessera/exact/config.hpp"

namespace tessera {

/// While it lives, this thread rounds to nearest even, keeps denormals and masks floating-point
/// traps; then the control register is as before, the sticky exception flags included. Objects
/// linked with -ffast-math set flush-to-zero for the whole process at start-up, which this undoes
/// where it matters. Nothing on a CUDA device, whose instructions name their rounding.
class [[nodiscard("give the guard a name")]] StrictRounding {
 public:
  TESSERA_HD StrictRounding() noexcept {
    TESSERA_CONTROL_READ(saved_);
    const Register strict = TESSERA_CONTROL_STRICT;
    TESSERA_CONTROL_WRITE(strict);
  }
  TESSERA_HD ~StrictRounding() { TESSERA_CONTROL_WRITE(saved_); }
  StrictRounding(const StrictRounding&) = delete;
  StrictRounding& operator=(const StrictRounding&) = delete;

 private:
  using Register = TESSERA_CONTROL_TYPE;
  Register saved_;
};

namespace detail {

/// Keeps `value` and what it is computed from on this side of a StrictRounding's start or end.
/// Loads and stores stay by themselves; arithmetic from register to register needs it at both ends.
template <class Float>
TESSERA_HD inline Float pin(Float value) noexcept {
  TESSERA_PIN(value);
  return value;
}

}  // namespace detail
}  // namespace tessera
