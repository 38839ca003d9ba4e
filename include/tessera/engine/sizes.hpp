// What is too large to be planned: the planner's sums are of 64 bits and do not look for overflow.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/engine/options.hpp"
#include "tessera/engine/registry.hpp"
#include "tessera/error.hpp"
#include "tessera/layout/flat.hpp"
#include "tessera/tensor/dtype.hpp"

namespace tessera::engine {

/// More ranks than any plan is for: tables of the step have an entry a rank and tensor.
inline constexpr int kMostRanks = 1 << 24;

/// Throws Error unless all that a rank might hold at once, if nothing were sharded, is below 2^62
/// bytes; whatever the policy, neither the plan nor a schedule's arena is more. In floating point,
/// which does not wrap.
inline void check_size(const Registry& registry, const Options& options, int moments,
                       const MeshShape& mesh) {
  constexpr double kMost = 4611686018427387904.0;  // 2^62
  const double padding =
      static_cast<double>(layout::kGranule) * (1.0 * mesh.shard * mesh.replicate + 1.0);
  double all = static_cast<double>(options.spare_slot_bytes);
  if (all >= kMost) {
    detail::fail("tessera: Options::spare_slot_bytes is ", options.spare_slot_bytes,
                 ", which is more than any plan can hold");
  }
  double largest = 0;
  const TensorRecord* most = nullptr;
  for (const TensorRecord& tensor : registry.tensors()) {
    // In slots a unit's parameters may lie twice and its gradients twice, of 4 bytes at most;
    // master, reduced gradient and moments are fp32.
    const double width =
        2.0 * static_cast<double>(size_of(tensor.info.dtype)) + 4.0 * (2 + 2 + moments);
    const double bytes = (static_cast<double>(tensor.elements) + padding) * width;
    all += bytes;
    if (bytes <= largest) continue;
    largest = bytes;
    most = &tensor;
  }
  if (all < kMost) return;
  detail::fail("tessera: the model has too many elements to be planned over ", mesh.size(),
               mesh.size() == 1 ? " rank" : " ranks", ": its states would be ", all,
               " bytes; the largest tensor is '", most->info.name, "' of shape ", most->info.shape);
}

}  // namespace tessera::engine
