// The ranks that compute layers together, and the collectives of their activations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>

#include "tessera/backend/backend.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/mesh.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/layout/flat.hpp"
#include "tessera/parallel/share.hpp"

namespace tessera {

/// The largest of the calls of one kind that a TensorGroup will be asked for, over all ranks
/// together: sum of rows x columns elements, rows (sum_rows, gather_rows) or gather_columns of a
/// matrix.
struct LargestCall {
  enum class Kind : std::uint8_t { sum, rows, columns };
  Kind kind = Kind::sum;
  std::uint64_t rows = 0;
  std::uint64_t columns = 1;
  DType dtype = DType::f32;
};

namespace detail {

/// Where an element of a matrix is whose columns' shares lie one rank's after the other's.
template <class T>
struct JoinColumns {
  const T* parts;
  T* all;
  std::uint64_t columns;
  std::uint64_t chunk;  ///< elements from one rank's part to the next
  int ranks;

  TESSERA_HD void operator()(std::uint64_t index) const {
    const std::uint64_t row = index / columns;
    const std::uint64_t column = index % columns;
    const auto of = static_cast<std::uint64_t>(ranks);
    const std::uint64_t least = columns / of;
    const std::uint64_t larger = columns % of;
    const std::uint64_t upto = larger * (least + 1);  // the columns of the larger shares
    const bool early = column < upto;
    const std::uint64_t size = early ? least + 1 : least;
    const std::uint64_t rank = early ? column / size : larger + (column - upto) / size;
    const std::uint64_t at = early ? column % size : (column - upto) % size;
    all[index] = parts[rank * chunk + row * size + at];
  }
};

}  // namespace detail

/// One rank's place on the tensor axis of a mesh. Matrices are row-major and dense, of float or
/// bf16, in the backend's memory. Sums run in rank order in fp32, are rounded once, and have the
/// same bits on all ranks.
///
/// Every call is a collective: all ranks of the group make the same ones, in the same order and of
/// the same sizes, each from one thread. They are enqueued on the compute stream (on the host, done
/// when they return) on a channel of the group's own, and use memory that was allocated by the
/// constructor. With one rank nothing is sent: sums and gathers are copies, or nothing where they
/// are in place. Error where a call needs more memory than those that were announced;
/// CommunicatorError where another rank does not come.
template <Backend B>
class TensorGroup {
 public:
  using Runtime = typename B::Runtime;
  using Communicator = typename B::Communicator;

  /// Collective over mesh.tensor(), which must stay usable. The mesh's options name the stream.
  TensorGroup(Mesh<B>& mesh, std::span<const LargestCall> largest)
      : runtime_(mesh.options()), group_(mesh.tensor().channel()) {
    if (size() == 1) return;
    for (const LargestCall& call : largest) {
      const std::uint64_t element = size_of(call.dtype);
      const std::uint64_t needed = workspace_of(call) * element;
      workspace_bytes_ = std::max(workspace_bytes_, needed);
      if (call.kind == LargestCall::Kind::columns) continue;
      scratch_bytes_ = std::max(
          scratch_bytes_,
          needed + (call.kind == LargestCall::Kind::sum ? call.rows * call.columns * element : 0));
    }
    if constexpr (!Communicator::needs_reduce_scratch) scratch_bytes_ = 0;
    workspace_ = static_cast<std::byte*>(runtime_.allocate(workspace_bytes_));
    try {
      scratch_ = static_cast<std::byte*>(runtime_.allocate(scratch_bytes_));
    } catch (...) {
      runtime_.release(workspace_, workspace_bytes_);
      throw;
    }
  }
  TensorGroup(Mesh<B>& mesh, std::initializer_list<LargestCall> largest)
      : TensorGroup(mesh, std::span(largest.begin(), largest.size())) {}
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;
  ~TensorGroup() {
    if (workspace_ == nullptr && scratch_ == nullptr) return;
    try {
      runtime_.synchronize(stream());
    } catch (...) {  // a stream that has failed uses nothing any more
    }
    runtime_.release(scratch_, scratch_bytes_);
    runtime_.release(workspace_, workspace_bytes_);
  }

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Share share(std::uint64_t whole) const { return share_of(whole, size(), rank()); }
  Runtime& runtime() { return runtime_; }
  typename Runtime::Stream& stream() { return runtime_.stream(StreamKind::compute); }
  /// Of the activations' collectives so far, the engine's not among them.
  CollectiveCounts counts() const { return group_.counts(); }

  /// values[n] becomes the ranks' sum.
  template <class T>
  void sum(T* values, std::uint64_t n) {
    if (size() == 1 || n == 0) return;
    // What divides into whole granules is summed where it is, the few elements left over apart.
    const auto ranks = static_cast<std::uint64_t>(size());
    const std::uint64_t piece = n / ranks / kGranule * kGranule;
    const std::uint64_t rest = n - piece * ranks;
    T* const tail = workspace<T>(rest == 0 ? 0 : kGranule * ranks, "a sum");
    copy(tail, values + piece * ranks, rest);
    check_scratch<T>(n + kGranule * ranks);
    ReduceSegment reduce[2];
    GatherSegment gather[2];
    std::size_t parts = 0;
    const auto add = [&](T* part, std::uint64_t elements) {
      if (elements == 0) return;
      T* const own = part + elements * static_cast<std::uint64_t>(rank());
      reduce[parts] = {part, dtype<T>(), own, elements, elements, 1.0f, false, dtype<T>()};
      gather[parts++] = {own, part, elements * sizeof(T), elements * sizeof(T)};
    };
    add(values, piece);
    add(tail, rest == 0 ? 0 : kGranule);
    const std::string_view name = "a tensor-parallel sum";
    group_.reduce_scatter(stream(), {CollectiveKind::reduce_scatter, name},
                          std::span<const ReduceSegment>(reduce, parts), scratch_);
    group_.all_gather(stream(), {CollectiveKind::all_gather, name},
                      std::span<const GatherSegment>(gather, parts));
    copy(values + piece * ranks, tail, rest);
  }

  /// own: the rank's share(rows) of the ranks' sum of partial[rows, columns], which is overwritten.
  /// May be in place: own == partial + share(rows).begin * columns.
  template <class T>
  void sum_rows(std::uint64_t rows, std::uint64_t columns, T* partial, T* own) {
    const Share mine = share(rows);
    if (size() == 1) return copy(own, partial, rows * columns);
    const std::uint64_t chunk = chunk_of(rows, columns);
    if (chunk == 0) return;
    const bool even = is_even(rows, columns);
    T* const full = even ? partial : workspace<T>(chunk * ranks(), "sum_rows");
    check_scratch<T>(chunk * ranks());
    if (!even) {
      each_share(rows, [&](std::uint64_t r, const Share& share) {
        copy(full + r * chunk, partial + share.begin * columns, share.size * columns);
      });
    }
    T* const out = even ? own : full + chunk * static_cast<std::uint64_t>(rank());
    const ReduceSegment segment{full, dtype<T>(), out, chunk, chunk, 1.0f, false, dtype<T>()};
    group_.reduce_scatter(stream(), {CollectiveKind::reduce_scatter, "tensor-parallel rows"},
                          std::span<const ReduceSegment>(&segment, 1), scratch_);
    if (!even) copy(own, out, mine.size * columns);
  }

  /// all[rows, columns] of the ranks' shares of its rows. May be in place: own == all +
  /// share(rows).begin * columns.
  template <class T>
  void gather_rows(std::uint64_t rows, std::uint64_t columns, const T* own, T* all) {
    const Share mine = share(rows);
    if (size() == 1) return copy(all, own, rows * columns);
    const std::uint64_t chunk = chunk_of(rows, columns);
    if (chunk == 0) return;
    const bool even = is_even(rows, columns);
    T* const full = even ? all : workspace<T>(chunk * ranks(), "gather_rows");
    T* const piece = full + chunk * static_cast<std::uint64_t>(rank());
    if (!even) copy(piece, own, mine.size * columns);
    gather("tensor-parallel rows", even ? own : piece, full, chunk);
    if (even) return;
    each_share(rows, [&](std::uint64_t r, const Share& share) {
      copy(all + share.begin * columns, full + r * chunk, share.size * columns);
    });
  }

  /// all[rows, columns] of the ranks' shares of its columns, own[rows, share(columns).size].
  template <class T>
  void gather_columns(std::uint64_t rows, std::uint64_t columns, const T* own, T* all) {
    if (size() == 1) return copy(all, own, rows * columns);
    const std::uint64_t chunk = chunk_of(columns, rows);
    if (chunk == 0) return;
    T* const full = workspace<T>(chunk * ranks(), "gather_columns");
    T* const piece = full + chunk * static_cast<std::uint64_t>(rank());
    copy(piece, own, rows * share(columns).size);
    gather("tensor-parallel columns", static_cast<const T*>(piece), full, chunk);
    runtime_.for_each(stream(), rows * columns,
                      detail::JoinColumns<T>{full, all, columns, chunk, size()});
  }

  /// all[size() * n] of every rank's own[n], of any type that is bytes, in rank order.
  template <class T>
  void gather_equal(std::uint64_t n, const T* own, T* all) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (size() == 1) return copy(all, own, n);
    if (n > 0) gather("tensor-parallel values", own, all, n);
  }

 private:
  static constexpr std::uint64_t kGranule = layout::kGranule;  // of the engine's collectives too

  template <class T>
  static constexpr DType dtype() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16>,
                  "tessera: activations are float or bf16");
    return std::is_same_v<T, float> ? DType::f32 : DType::bf16;
  }

  std::uint64_t ranks() const { return static_cast<std::uint64_t>(size()); }
  /// Elements from one rank's rows to the next one's where shares are padded.
  std::uint64_t chunk_of(std::uint64_t rows, std::uint64_t columns) const {
    return layout::round_up(largest_share(rows, size()) * columns, kGranule);
  }
  /// Shares that need no padding are sent from where they are.
  bool is_even(std::uint64_t rows, std::uint64_t columns) const {
    return rows % ranks() == 0 && chunk_of(rows, columns) * ranks() == rows * columns;
  }
  std::uint64_t workspace_of(const LargestCall& call) const {
    switch (call.kind) {
      case LargestCall::Kind::sum: return kGranule * ranks();
      case LargestCall::Kind::rows: return chunk_of(call.rows, call.columns) * ranks();
      case LargestCall::Kind::columns: return chunk_of(call.columns, call.rows) * ranks();
    }
    return 0;
  }

  template <class T>
  T* workspace(std::uint64_t elements, const char* what) {
    if (elements * sizeof(T) > workspace_bytes_) too_large(what);
    return reinterpret_cast<T*>(workspace_);
  }
  template <class T>
  void check_scratch(std::uint64_t elements) const {
    if constexpr (Communicator::needs_reduce_scratch) {
      if (elements * sizeof(T) > scratch_bytes_) too_large("a sum");
    }
  }
  [[noreturn]] static void too_large(const char* what) {
    detail::fail("tessera: ", what,
                 " of a tensor group is larger than its constructor was told: see LargestCall");
  }

  template <class F>
  void each_share(std::uint64_t rows, F&& f) const {
    for (int r = 0; r < size(); ++r) {
      f(static_cast<std::uint64_t>(r), share_of(rows, size(), r));
    }
  }
  template <class T>
  void copy(T* to, const T* from, std::uint64_t elements) {
    if (to != from && elements > 0) runtime_.copy(stream(), to, from, elements * sizeof(T));
  }
  template <class T>
  void gather(std::string_view name, const T* own, T* full, std::uint64_t elements) {
    const GatherSegment segment{own, full, elements * sizeof(T), elements * sizeof(T)};
    group_.all_gather(stream(), {CollectiveKind::all_gather, name},
                      std::span<const GatherSegment>(&segment, 1));
  }

  Runtime runtime_;
  Communicator group_;
  std::uint64_t workspace_bytes_ = 0;
  std::uint64_t scratch_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;
};

}  // namespace tessera
