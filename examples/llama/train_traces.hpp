#pragma once

#include <vector>
#include <tessera/engine/report.hpp>

namespace llama {

/// What ran on the streams, a vector a rank.
using Traces = std::vector<std::vector<tessera::TraceEvent>>;

}  // namespace llama
