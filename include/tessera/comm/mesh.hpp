// Backends, which name a runtime and a communicator, and the mesh of ranks a Shard runs on.
#pragma once

#include <concepts>
#include <string>
#include <utility>

#include "tessera/backend/host.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/in_process.hpp"
#include "tessera/comm/mesh_shape.hpp"

namespace tessera {

/// A backend: a Runtime, the Communicator that carries its collectives, and the runtime's options.
template <class B>
concept Backend = requires {
  typename B::Runtime;
  typename B::Communicator;
  requires Runtime<typename B::Runtime>;
  requires Communicator<typename B::Communicator, typename B::Runtime>;
};

inline namespace TESSERA_ISA {

/// Tensors in the process's memory, streams that are threads.
template <class Comm = InProcess>
struct HostBackend {
  using Runtime = HostRuntime;
  using Communicator = Comm;
};
using Host = HostBackend<>;

}  // namespace TESSERA_ISA

static_assert(Backend<Host>);

/// Communicators that can be cut into groups: the ranks with one color, ordered by (key, rank).
template <class C>
concept SplitsGroups = requires(C c) {
  { c.split(int{}, int{}) } -> std::same_as<C>;
};

/// One rank's place among the ranks that train a model together, and its group along each axis.
template <Backend B>
class Mesh {
 public:
  using Communicator = typename B::Communicator;
  using RuntimeOptions = typename B::Runtime::Options;

  /// All ranks of `communicator` on one axis, `shard`. It must stay usable as long as the Shards
  /// made on this mesh.
  explicit Mesh(Communicator communicator, RuntimeOptions options = {})
      : shape_{.shard = communicator.size()},
        ranks_(communicator),
        shard_(communicator),
        data_(std::move(communicator)),
        options_(options) {
    place_ = shape_.place(ranks_.rank());
  }

  /// The ranks of `communicator` on several axes; see MeshShape for their order. Collective:
  /// communicators are split, in the same order on all ranks. Throws Error where the axes do not
  /// make up the ranks.
  Mesh(Communicator communicator, const MeshShape& shape, RuntimeOptions options = {})
      : shape_(shape), ranks_(std::move(communicator)), options_(options) {
    shape.check(ranks_.size());
    place_ = shape.place(ranks_.rank());
    shard_ = along(place_.replicate * shape.tensor + place_.tensor, place_.shard, shape.shard);
    replicate_ =
        along(place_.shard * shape.tensor + place_.tensor, place_.replicate, shape.replicate);
    tensor_ = along(shape.data_rank(place_), place_.tensor, shape.tensor);
    data_ = shape.replicate == 1
                ? shard_
                : along(place_.tensor, shape.data_rank(place_), shape.data_ranks());
  }

  /// One rank by itself.
  static Mesh single(RuntimeOptions options = {}) { return Mesh(Communicator{}, options); }

  int rank() const { return shape_.rank(place_); }
  int size() const { return shape_.size(); }
  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }

  /// All ranks.
  Communicator& communicator() { return ranks_; }
  /// Those that share this one's training state.
  Communicator& shard() { return shard_; }
  /// Those that keep the same piece of it.
  Communicator& replicate() { return replicate_; }
  /// Those that compute layers together with this one.
  Communicator& tensor() { return tensor_; }
  /// Those with the same slices and other data: shard and replicate together, in the order of
  /// MeshShape::data_rank.
  Communicator& data() { return data_; }

  const RuntimeOptions& options() const { return options_; }
  /// For example "replicate=2, shard=4, this is rank 2".
  std::string describe() const {
    return shape_.describe() + ", this is rank " + std::to_string(rank());
  }

 private:
  Communicator along(int color, int key, int size) {
    if (size == 1) return Communicator{};
    if (size == ranks_.size()) return ranks_;
    if constexpr (SplitsGroups<Communicator>) {
      return ranks_.split(color, key);
    } else {
      detail::fail("tessera: a mesh of ", shape_.describe(),
                   " needs a communicator that has split(color, key)");
    }
  }

  MeshShape shape_;
  MeshPlace place_;
  Communicator ranks_;
  Communicator shard_;
  Communicator replicate_;
  Communicator tensor_;
  Communicator data_;
  RuntimeOptions options_;
};

}  // namespace tessera
