// The gradient norm over all ranks as one fixed tree a tensor: who holds which nodes of it.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/engine/registry.hpp"
#include "tessera/exact/cell_sum.hpp"
#include "tessera/exact/cell_tree.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/strict_double.hpp"
#include "tessera/layout/flat.hpp"

namespace tessera::engine {

/// Each rank folds the cells it holds of a tensor into the tree's nodes that lie wholly within
/// them; the nodes of all ranks, gathered, give the tensor's value by the same tree whatever the
/// pieces are (see exact/cell_sum.hpp).
class NormTree {
 public:
  NormTree(const Registry& registry, int world) : registry_(registry), world_(world) {
    offsets_.resize(registry.tensors().size() * static_cast<std::size_t>(world));
    for (int r = 0; r < world; ++r) {
      std::uint64_t nodes = 0;
      for (const TensorRecord& tensor : registry.tensors()) {
        offsets_[place(tensor, r)] = nodes;
        nodes += nodes_of(registry, tensor, r);
      }
    }
    stride_ = stride(registry, world);
  }

  /// Doubles a rank contributes, the same for all: the most that any has, rounded up.
  std::uint64_t stride() const { return stride_; }
  static std::uint64_t stride(const Registry& registry, int world) {
    std::uint64_t most = 0;
    for (int r = 0; r < world; ++r) {
      std::uint64_t nodes = 0;
      for (const TensorRecord& tensor : registry.tensors()) nodes += nodes_of(registry, tensor, r);
      most = nodes > most ? nodes : most;
    }
    return layout::round_up(most, 8);
  }
  /// Bytes of the gathered nodes of all ranks.
  static std::uint64_t bytes(const Registry& registry, int world) {
    return stride(registry, world) * static_cast<std::uint64_t>(world) * sizeof(double);
  }

  /// Where a rank's nodes of a tensor begin among its doubles.
  std::uint64_t offset(const TensorRecord& tensor, int rank) const {
    return offsets_[place(tensor, rank)];
  }

  /// The norm of the tensors of the units in `included`, from the doubles of all ranks. Tensors
  /// are added up in the order of registration.
  double norm(NormKind kind, const double* values, const std::vector<char>& included) const {
    const StrictRounding strict;
    double total = 0;
    std::vector<NodeValue> nodes;
    for (const TensorRecord& tensor : registry_.tensors()) {
      if (!tensor.info.trainable || tensor.elements == 0 || !included[tensor.unit]) continue;
      nodes.clear();
      for (int r = 0; r < world_; ++r) {
        const layout::Range cells = cells_of(registry_, tensor, r);
        const double* value = values + stride_ * static_cast<std::uint64_t>(r) + offset(tensor, r);
        for_each_node(cells.begin, cells.end, [&](const TreeNode& node) {
          nodes.push_back({node, *value++});
        });
      }
      const std::uint64_t cells = (tensor.elements + kCell - 1) / kCell;
      total = detail::fold_pair(kind, total, combine(kind, cells, nodes));
    }
    return kind == NormKind::l2 ? sqrt(StrictDouble{total}).x : total;
  }

 private:
  static layout::Range cells_of(const Registry& registry, const TensorRecord& tensor, int rank) {
    if (!tensor.info.trainable) return {};
    const layout::Range elements =
        layout::owned(registry.group_of(tensor), tensor.placement, tensor.elements, rank);
    return {elements.begin / kCell, (elements.end + kCell - 1) / kCell};
  }
  static std::uint64_t nodes_of(const Registry& registry, const TensorRecord& tensor, int rank) {
    const layout::Range cells = cells_of(registry, tensor, rank);
    return static_cast<std::uint64_t>(node_count(cells.begin, cells.end));
  }
  std::size_t place(const TensorRecord& tensor, int rank) const {
    return static_cast<std::size_t>(rank) * registry_.tensors().size() + tensor.info.id;
  }

  const Registry& registry_;
  int world_;
  std::uint64_t stride_ = 0;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace tessera::engine
