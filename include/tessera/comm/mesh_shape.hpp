// The axes of a mesh, and where a rank stands on them.
#pragma once

#include <string>

#include "tessera/error.hpp"

namespace tessera {

/// A rank's coordinates.
struct MeshPlace {
  int replicate = 0;
  int shard = 0;
  int tensor = 0;
  friend constexpr bool operator==(const MeshPlace&, const MeshPlace&) = default;
};

/// Ranks per axis; any may be 1.
/// - tensor: ranks that compute each layer together, each with its slice of the weights;
/// - shard: ranks that see other data, and keep a piece each of the training state (FSDP);
/// - replicate: groups of tensor x shard ranks that see other data, and keep the same (HSDP).
///
/// Ranks are numbered with `tensor` innermost and `replicate` outermost: the axis that communicates
/// most is the one whose ranks are neighbours, on one node as launchers number them.
struct MeshShape {
  int replicate = 1;
  int shard = 1;
  int tensor = 1;

  constexpr int size() const { return replicate * shard * tensor; }
  /// Ranks with other data than each other.
  constexpr int data_ranks() const { return replicate * shard; }

  constexpr MeshPlace place(int rank) const {
    return {rank / (shard * tensor), rank / tensor % shard, rank % tensor};
  }
  constexpr int rank(const MeshPlace& at) const {
    return (at.replicate * shard + at.shard) * tensor + at.tensor;
  }
  /// A place's number among data_ranks().
  constexpr int data_rank(const MeshPlace& at) const { return at.replicate * shard + at.shard; }

  /// For example "replicate=2, shard=4, tensor=2"; axes of 1 are left out, but for shard.
  std::string describe() const {
    std::string text;
    if (replicate > 1) text += "replicate=" + std::to_string(replicate) + ", ";
    text += "shard=" + std::to_string(shard);
    if (tensor > 1) text += ", tensor=" + std::to_string(tensor);
    return text;
  }

  /// Throws Error where the axes are not positive or do not make up `ranks`.
  void check(int ranks) const {
    constexpr int kMost = 1 << 20;  // whose products do not overflow
    const bool positive = replicate > 0 && shard > 0 && tensor > 0;
    const long long all = 1LL * (replicate % kMost) * (shard % kMost) * (tensor % kMost);
    const bool small = replicate < kMost && shard < kMost && tensor < kMost;
    if (positive && small && all == ranks) return;
    detail::fail("tessera: a mesh of replicate=", replicate, ", shard=", shard, ", tensor=", tensor,
                 " cannot be made of ", ranks,
                 " ranks: the axes must be 1 or more, and their "
                 "product the number of ranks");
  }

  friend constexpr bool operator==(const MeshShape&, const MeshShape&) = default;
};

}  // namespace tessera
