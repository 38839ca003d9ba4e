// The gradient norm over all ranks as one fixed tree a tensor: who holds which nodes of it, and the
// functions that evaluate it where the nodes are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/backend/ranges.hpp"
#include "tessera/engine/registry.hpp"
#include "tessera/exact/cell_sum.hpp"
#include "tessera/exact/cell_tree.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/layout/flat.hpp"

namespace tessera::engine {

/// Where a tensor lies, for those who evaluate its tree.
struct NormTensor {
  std::uint64_t elements = 0;  ///< 0: it is not part of the norm
  std::uint64_t offset = 0;    ///< in its group's flat parameter
  std::uint64_t piece_elements = 0;
  std::uint32_t unit = 0;
  std::uint32_t sliced = 0;  ///< whether each rank of the tensor axis has another part of it
};

/// Each rank folds the cells it holds of a tensor into the tree's nodes that lie wholly within
/// them; the nodes of all ranks, gathered, give the tensor's value by the same tree whatever the
/// pieces are (see exact/cell_sum.hpp).
class NormTree {
 public:
  NormTree(const Registry& registry, int world) : registry_(registry), world_(world) {
    first_nodes_.resize(registry.tensors().size() * static_cast<std::size_t>(world));
    for (int r = 0; r < world; ++r) {
      std::uint64_t nodes = 0;
      for (const TensorRecord& tensor : registry.tensors()) {
        first_nodes_[place(tensor, r)] = static_cast<std::uint32_t>(nodes);
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
      most = std::max(most, nodes);
    }
    return layout::round_up(most, 8);
  }
  /// Bytes of the gathered nodes of all ranks.
  static std::uint64_t bytes(const Registry& registry, int world) {
    return stride(registry, world) * static_cast<std::uint64_t>(world) * sizeof(double);
  }
  /// The most windows (see NormRange) that a rank's cells touch.
  static std::uint64_t most_windows(const Registry& registry, int world, std::uint64_t window) {
    std::uint64_t most = 0;
    for (int r = 0; window > 0 && r < world; ++r) {
      std::uint64_t windows = 0;
      for (const TensorRecord& tensor : registry.tensors()) {
        const layout::Range cells = cells_of(registry, tensor, r);
        windows += windows_of(cells.begin, cells.end, window);
      }
      most = std::max(most, windows);
    }
    return most;
  }

  /// Where a rank's nodes of a tensor begin among its doubles.
  std::uint64_t first_node(const TensorRecord& tensor, int rank) const {
    return first_nodes_[place(tensor, rank)];
  }
  /// The same for all tensors, rank by rank.
  const std::vector<std::uint32_t>& first_nodes() const { return first_nodes_; }

  std::vector<NormTensor> tensors() const {
    std::vector<NormTensor> all;
    for (const TensorRecord& tensor : registry_.tensors()) {
      const std::uint64_t elements = tensor.info.trainable ? tensor.elements : 0;
      all.push_back({elements, tensor.placement.offset, registry_.group_of(tensor).piece_elements,
                     tensor.unit, tensor.info.is_sliced ? 1u : 0u});
    }
    return all;
  }

  /// The cells of a tensor that a rank holds.
  static layout::Range cells_of(const Registry& registry, const TensorRecord& tensor, int rank) {
    if (!tensor.info.trainable) return {};
    const layout::Range elements =
        layout::owned(registry.group_of(tensor), tensor.placement, tensor.elements, rank);
    return {elements.begin / kCell, tessera::cells_of(elements.end)};
  }

 private:
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
  std::vector<std::uint32_t> first_nodes_;
};

/// for_each tensor: the nodes of all ranks to the value of its tree; 0 for what is not included.
struct FoldTensor {
  NormKind kind;
  std::uint64_t tensor_count;
  std::uint64_t stride;
  const NormTensor* tensors;
  const std::uint32_t* first_nodes;
  const unsigned char* included;
  const double* nodes;
  double* values;

  TESSERA_HD void operator()(std::uint64_t i) const {
    const NormTensor tensor = tensors[i];
    values[i] = 0;
    if (tensor.elements == 0 || included[tensor.unit] == 0) return;
    const StrictRounding strict;
    detail::NodeStack stack(kind);
    const std::uint64_t last = (tensor.offset + tensor.elements - 1) / tensor.piece_elements;
    for (std::uint64_t rank = tensor.offset / tensor.piece_elements; rank <= last; ++rank) {
      const layout::Range held = layout::owned(tensor.piece_elements, tensor.offset,
                                               tensor.elements, static_cast<int>(rank));
      const double* value = nodes + stride * rank + first_nodes[tensor_count * rank + i];
      for_each_node(held.begin / kCell, (held.end + kCell - 1) / kCell, [&](const TreeNode& node) {
        stack.push({node, *value++});
      });
    }
    values[i] = detail::pin(detail::with_one_nan(stack.fold_all()));
  }
};

}  // namespace tessera::engine
