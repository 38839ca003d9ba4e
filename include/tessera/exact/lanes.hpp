#pragma once

#include "tessera/exact/config.hpp"
#include "tessera/exact/scalar_lanes.hpp"
#include "tessera/exact/vector_lanes.hpp"

namespace tessera {
inline namespace TESSERA_ISA {

/// The widest Lanes of this translation unit's instruction set; 4 at most under nvcc.
inline constexpr int kNativeLanes = TESSERA_NATIVE_LANES;

}  // namespace TESSERA_ISA
}  // namespace tessera
