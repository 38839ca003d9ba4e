// What a step decides and what it needs to decide it, in the backend's memory: the caller need not
// wait for a norm before it enqueues the update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/backend/ranges.hpp"
#include "tessera/engine/norm_tree.hpp"
#include "tessera/engine/options.hpp"
#include "tessera/engine/registry.hpp"
#include "tessera/layout/flat.hpp"

namespace tessera::engine {

/// The scalars of a step.
struct StepScalars {
  double norm = 0;            ///< of the reduced gradients, before clipping
  float learning_rate = 0;    ///< set before the step
  float clip_factor = 1;      ///< what gradients are multiplied by
  std::uint32_t skipped = 0;  ///< a gradient was inf or NaN: nothing is changed
};

/// What the optimizer is told of a tensor beyond its elements.
struct UpdateSetting {
  float learning_rate_scale = 1;
  float weight_decay = 0;
};

/// What the optimizer, the backend and the communicator ask of the plan.
struct Requirements {
  int moments = 0;                ///< fp32 arrays of optimizer state
  std::uint64_t rule_bytes = 0;   ///< the optimizer's clock and coefficients
  std::uint64_t norm_window = 0;  ///< Runtime::norm_window
  bool reduce_scratch = false;    ///< Communicator::needs_reduce_scratch
};

/// The setting of a tensor: by parameter group, and by whether its weights decay.
inline std::uint32_t setting_of(const TensorRecord& tensor) {
  return static_cast<std::uint32_t>(tensor.group) * 2 + (tensor.decay ? 1u : 0u);
}
inline std::size_t setting_count(const Options& options) {
  return 2 * (options.groups.empty() ? std::size_t{1} : options.groups.size());
}

/// Byte offsets from the start of the step's memory.
struct StepMemory {
  std::uint64_t scalars = 0;
  std::uint64_t rule = 0;
  std::uint64_t settings = 0;
  std::uint64_t included = 0;      ///< a byte a unit: it has gradients in this step
  std::uint64_t tensor_norms = 0;  ///< a double a tensor
  std::uint64_t slice_norms = 0;   ///< the same of every rank of a tensor axis of several
  std::uint64_t norm_tensors = 0;
  std::uint64_t first_nodes = 0;  ///< by rank and tensor
  std::uint64_t norm_ranges = 0;
  std::uint64_t update_ranges = 0;
  std::uint64_t partials = 0;
  std::uint64_t nodes = 0;  ///< all ranks' nodes, NormTree::stride() doubles each
  std::uint64_t total = 0;

  static StepMemory lay_out(const Registry& registry, const MeshShape& mesh, const Options& options,
                            const Requirements& needs) {
    const int world = mesh.shard;
    const std::uint64_t tensors = registry.tensors().size();
    StepMemory at;
    std::uint64_t end = 0;
    const auto take = [&end](std::uint64_t bytes) {
      const std::uint64_t begin = end;
      end = layout::round_up(end + bytes, 64);
      return begin;
    };
    at.scalars = take(sizeof(StepScalars));
    at.rule = take(needs.rule_bytes);
    at.settings = take(setting_count(options) * sizeof(UpdateSetting));
    at.included = take(registry.units().size());
    at.tensor_norms = take(tensors * sizeof(double));
    if (mesh.tensor > 1) {
      at.slice_norms = take(tensors * static_cast<std::uint64_t>(mesh.tensor) * sizeof(double));
    }
    at.norm_tensors = take(tensors * sizeof(NormTensor));
    at.first_nodes = take(tensors * static_cast<std::uint64_t>(world) * sizeof(std::uint32_t));
    at.norm_ranges = take(tensors * sizeof(NormRange));
    at.update_ranges = take(tensors * sizeof(ElementRange));
    at.partials = take(NormTree::most_windows(registry, world, needs.norm_window) * sizeof(double));
    at.nodes = take(NormTree::bytes(registry, world));
    at.total = end;
    return at;
  }
};

}  // namespace tessera::engine
