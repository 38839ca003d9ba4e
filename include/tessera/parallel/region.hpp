// What happens at the borders of a column-parallel layer followed by a row-parallel one.
#pragma once

#include <cstdint>

#include "tessera/parallel/share.hpp"
#include "tessera/parallel/tensor_group.hpp"

namespace tessera {

/// How activations lie outside of regions.
enum class RowLayout : std::uint8_t {
  whole,   ///< all ranks have all rows, the same
  shared,  ///< each rank has its share of the rows (sequence parallelism)
};

/// A region is a column-parallel layer, whatever is done to each rank's columns of its result, and
/// a row-parallel layer: between its borders every rank has all rows, and outside what RowLayout
/// says. `enter` is what stands before the region and `leave` what stands behind it; each one's
/// backward is its transpose:
///
/// | layout | enter | enter_backward | leave | leave_backward |
/// | --- | --- | --- | --- | --- |
/// | whole | nothing | sum | sum | nothing |
/// | shared | gather rows | sum of own rows | sum of own rows | gather rows |
///
/// So an input gradient is whole outside of regions, and those of parameters that are used there
/// (norms, the bias of the row-parallel layer) are the same on all ranks with `whole`, and with
/// `shared` sums over a rank's rows, which the trainer adds up with TensorGroup::sum.
///
/// Matrices are [rows, columns]; `own` ones have own(rows).size rows. The group's collectives
/// apply: see TensorGroup, whose `largest` must name what passes here: a sum with `whole`, rows
/// with `shared`.
template <Backend B>
class ParallelRegion {
 public:
  /// `group` must outlive the region.
  ParallelRegion(TensorGroup<B>& group, RowLayout layout) : group_(&group), layout_(layout) {}

  RowLayout layout() const { return layout_; }
  /// The rows that this rank has outside of regions.
  Share own(std::uint64_t rows) const {
    return layout_ == RowLayout::shared ? group_->share(rows) : Share{0, rows};
  }

  /// All rows, for the column-parallel layer: `own` itself with RowLayout::whole, else in `all`.
  template <class T>
  const T* enter(std::uint64_t rows, std::uint64_t columns, const T* own, T* all) {
    return joined(rows, columns, own, all);
  }
  /// From the input gradients of the ranks' columns, the own rows of the whole one, which lie in
  /// `partial`.
  template <class T>
  T* enter_backward(std::uint64_t rows, std::uint64_t columns, T* partial) {
    T* const own = partial + this->own(rows).begin * columns;
    leave(rows, columns, partial, own);
    return own;
  }
  /// The own rows of the sum of what the row-parallel layers gave. `partial` is overwritten, and
  /// may be `own` with RowLayout::whole.
  template <class T>
  void leave(std::uint64_t rows, std::uint64_t columns, T* partial, T* own) {
    if (layout_ == RowLayout::shared) return group_->sum_rows(rows, columns, partial, own);
    group_->sum(partial, rows * columns);
    if (own == partial) return;
    group_->runtime().copy(group_->stream(), own, partial, rows * columns * sizeof(T));
  }
  /// All rows of the gradient of what leave gave: `own` itself with RowLayout::whole, else in
  /// `all`.
  template <class T>
  const T* leave_backward(std::uint64_t rows, std::uint64_t columns, const T* own, T* all) {
    return joined(rows, columns, own, all);
  }

 private:
  template <class T>
  const T* joined(std::uint64_t rows, std::uint64_t columns, const T* own, T* all) {
    if (layout_ == RowLayout::whole) return own;
    group_->gather_rows(rows, columns, own, all);
    return all;
  }

  TensorGroup<B>* group_;
  RowLayout layout_;
};

}  // namespace tessera
