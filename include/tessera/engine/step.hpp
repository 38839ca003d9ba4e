// The end of a step: norm, clipping, agreement on inf and NaN, and the update of the pieces. All of
// it is enqueued; what is decided on the way stays in the backend's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/gather.hpp"
#include "tessera/engine/reduce.hpp"
#include "tessera/engine/step_functions.hpp"
#include "tessera/engine/step_memory.hpp"
#include "tessera/engine/update_rule.hpp"

namespace tessera::engine {

template <Backend Bk>
class Stepping {
 public:
  using B = typename Bk::Runtime;

  Stepping(Context<Bk>& context, Gathering<Bk>& gathering, Reducing<Bk>& reducing,
           const UpdateRule<B>& rule)
      : c_(context), gathering_(gathering), reducing_(reducing), rule_(rule) {}

  /// After materialize: the tables of ranges, and the optimizer's clock.
  void start() {
    if constexpr (B::holds_memory) {
      make_tables();
      const StepMemory& at = c_.map.step_memory;
      put(at.settings, settings());
      put(at.norm_tensors, c_.norm_tree->tensors());
      put(at.first_nodes, c_.norm_tree->first_nodes());
      put(at.norm_ranges, c_.tables.norm_ranges);
      put(at.update_ranges, c_.tables.update_ranges);
      rule_.start(c_.backend, c_.compute(), update_memory());
    } else {
      make_tables();
    }
    forget_included();
  }

  /// All reductions have been issued. What it decides is in the step's memory.
  void run(float learning_rate) {
    include();
    if (!c_.policy.strategy.shard_optimizer && c_.world() > 1) gather_sums();
    const std::size_t folded = fold_early();
    wait_for_reductions();
    c_.check();
    // In a graph it would stay what it was: there it is set ahead of each replay.
    if (!c_.backend.capturing()) set_learning_rate(learning_rate);
    decide(folded);
    update();
    reducing_.forget_latest();
    for (UnitState<B>& unit : c_.units) unit.reduced = false;
  }

  /// Which units have gradients, as the backend was told last.
  const std::vector<unsigned char>& included() const { return included_; }
  void restore_included(const std::vector<unsigned char>& included) {
    if (included == included_) return;
    included_ = included;
    put(c_.map.step_memory.included, included_);
  }
  /// What the backend was told may not have reached it.
  void forget_included() { included_.assign(c_.units.size(), kUnknown); }

  void set_learning_rate(float rate) {
    c_.backend.for_each(c_.compute(), 1, SetLearningRate{scalars(), rate});
  }
  StepScalars* scalars() { return c_.template step_array<StepScalars>(c_.map.step_memory.scalars); }

 private:
  static constexpr unsigned char kUnknown = 2;

  // Which units have gradients in this step; rarely another set than in the step before.
  void include() {
    bool changed = false;
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      const unsigned char included = c_.units[u].reduced ? 1 : 0;
      changed = changed || included != included_[u];
      included_[u] = included;
      if (c_.facts[u].trainable && included == 0 &&
          c_.options.unused_units == UnusedUnits::refuse) {
        detail::fail("tessera: step(): unit '", c_.registry.unit(u).name,
                     "' had no backward lease in this step, and Options::unused_units is refuse");
      }
    }
    if (!changed) return;
    if (c_.backend.capturing()) {
      detail::fail(
          "tessera: the captured step has gradients of other units than the step before: "
          "run it once as it is, then capture it");
    }
    put(c_.map.step_memory.included, included_);
  }

  // Replicate: every rank updates everything, so it needs everyone's sums. They are sent as they
  // are kept, so that the bits are those of the strategies in which only the owner updates.
  void gather_sums() {
    c_.backend.record(event_, c_.compute());  // where a gradient may have been edited
    c_.backend.wait(c_.reducing(), event_);
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (included_[u] == 0) continue;
      const layout::UnitLayout& at = c_.layout(u);
      std::vector<GatherSegment> segments;
      std::uint64_t total = 0;
      for (std::uint32_t g = 0; g < at.group_count; ++g) {
        if (!at.groups[g].trainable) continue;
        const std::uint64_t bytes = at.groups[g].piece_elements * size_of(c_.reduced_dtype(u, g));
        std::byte* full = c_.reduced(u, g);
        segments.push_back(
            {full + bytes * static_cast<std::uint64_t>(c_.rank()), full, bytes, bytes});
        total += bytes;
      }
      const std::string& name = c_.registry.unit(u).name;
      c_.backend.ahead_of_collective(c_.reducing());
      const std::size_t span =
          c_.recorder.begin(Span::collective, "gather sums", name, StreamKind::reduce, total);
      c_.reduce_comm.all_gather(c_.reducing(), {CollectiveKind::all_gather, name}, segments);
      c_.recorder.end(span);
    }
  }

  void wait_for_reductions() {
    const std::size_t span =
        c_.recorder.begin(Span::wait, "wait for reductions", "", StreamKind::compute);
    c_.backend.record(event_, c_.reducing());
    c_.backend.wait(c_.compute(), event_);
    c_.recorder.end(span);
  }

  // The first `count` ranges, or those from there on.
  void fold(std::size_t first, std::size_t count) {
    const StepMemory& at = c_.map.step_memory;
    c_.backend.norm_nodes(c_.compute(), c_.options.norm,
                          std::span(c_.tables.norm_ranges).subspan(first, count),
                          c_.template step_array<NormRange>(at.norm_ranges) + first);
  }

  // Compute has time until the last reduction has ended: it folds the ranges ahead of that one's,
  // and tells how many.
  std::size_t fold_early() {
    const std::vector<std::uint32_t>& latest = reducing_.latest();
    if (latest.empty()) return 0;
    const std::vector<std::uint32_t>& units = c_.tables.norm_units;
    const auto end = std::find_first_of(units.begin(), units.end(), latest.begin(), latest.end());
    const auto count = static_cast<std::size_t>(end - units.begin());
    if (count == 0) return 0;
    c_.backend.wait(c_.compute(), reducing_.earlier());
    fold(0, count);
    return count;
  }

  // Each rank folds what it holds, all exchange their nodes, all evaluate the same tree.
  void decide(std::size_t folded) {
    const StepMemory& at = c_.map.step_memory;
    const std::uint64_t tensors = c_.registry.tensors().size();
    const std::uint64_t stride = c_.norm_tree->stride();
    auto* nodes = c_.template step_array<double>(at.nodes);
    auto* values = c_.template step_array<double>(at.tensor_norms);
    fold(folded, c_.tables.norm_ranges.size() - folded);
    if (c_.communicates() && stride > 0) exchange(c_.reduce_comm, c_.rank(), nodes, stride);
    c_.backend.for_each(
        c_.compute(), tensors,
        FoldTensor{c_.options.norm, tensors, stride,
                   c_.template step_array<NormTensor>(at.norm_tensors),
                   c_.template step_array<std::uint32_t>(at.first_nodes),
                   c_.template step_array<unsigned char>(at.included), nodes, values});
    if (c_.mesh_shape.tensor > 1 && tensors > 0) fold_slices(tensors, values);
    c_.backend.for_each(
        c_.compute(), 1,
        DecideStep{c_.options.norm, c_.options.clip_norm, tensors, values, scalars()});
  }

  // The ranks of the tensor axis have other parts of sliced tensors: all learn of all.
  void fold_slices(std::uint64_t tensors, double* values) {
    auto* const parts = c_.template step_array<double>(c_.map.step_memory.slice_norms);
    const auto own = tensors * static_cast<std::uint64_t>(c_.place.tensor);
    c_.backend.copy(c_.compute(), parts + own, values, tensors * sizeof(double));
    exchange(c_.tensor_comm, c_.place.tensor, parts, tensors);
    c_.backend.for_each(
        c_.compute(), tensors,
        FoldSlices{c_.options.norm, tensors, static_cast<std::uint64_t>(c_.mesh_shape.tensor),
                   c_.template step_array<NormTensor>(c_.map.step_memory.norm_tensors), parts,
                   values});
  }

  // `count` numbers of each rank, at its own place among those of all.
  void exchange(typename Bk::Communicator& among, int rank, double* numbers, std::uint64_t count) {
    const std::uint64_t bytes = count * sizeof(double);
    const double* own = numbers + count * static_cast<std::uint64_t>(rank);
    const GatherSegment segment{own, numbers, bytes, bytes};
    c_.backend.record(event_, c_.compute());
    c_.backend.wait(c_.reducing(), event_);
    const std::size_t collective =
        c_.recorder.begin(Span::collective, "norm", "", StreamKind::reduce, bytes);
    among.all_gather(c_.reducing(), {CollectiveKind::scalars, "the gradient norm"}, {&segment, 1});
    c_.recorder.end(collective);
    const std::size_t wait =
        c_.recorder.begin(Span::wait, "wait for the norm", "", StreamKind::compute);
    c_.backend.record(event_, c_.reducing());
    c_.backend.wait(c_.compute(), event_);
    c_.recorder.end(wait);
    c_.check();  // what a failed collective left unsaid must not be acted on
  }

  void update() {
    const std::size_t span = c_.recorder.begin(Span::other, "update", "", StreamKind::compute);
    const UpdateMemory memory = update_memory();
    rule_.advance(c_.backend, c_.compute(), memory);
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (included_[u] == 0) continue;
      for (const GroupRanges& group : c_.tables.groups[u]) update(u, group, memory);
      gathering_.reshard(u);  // the other ranks' pieces are stale
      c_.note_update(u);      // the next forward's gather of it need not wait for the others
    }
    c_.recorder.end(span);
  }

  void update(std::uint32_t u, const GroupRanges& of, const UpdateMemory& memory) {
    arrays_.ranges = std::span(c_.tables.update_ranges).subspan(of.first, of.count);
    arrays_.resident =
        c_.template step_array<ElementRange>(c_.map.step_memory.update_ranges) + of.first;
    arrays_.dtype = c_.layout(u).groups[of.group].dtype;
    arrays_.parameters = c_.weights(u, of.group);
    arrays_.master = c_.master(u, of.group);
    arrays_.gradients = c_.reduced(u, of.group);
    arrays_.moments.clear();
    for (int m = 0; m < c_.needs.moments; ++m) arrays_.moments.push_back(c_.moment(u, of.group, m));
    rule_.update(c_.backend, c_.compute(), arrays_, memory);
  }

  UpdateMemory update_memory() {
    const StepMemory& at = c_.map.step_memory;
    return {scalars(), c_.template step_array<UpdateSetting>(at.settings),
            setting_count(c_.options), c_.template step_array<std::byte>(at.rule),
            c_.options.rounding_seed};
  }

  std::vector<UpdateSetting> settings() const {
    std::vector<UpdateSetting> all(setting_count(c_.options));
    for (std::size_t g = 0; 2 * g < all.size(); ++g) {
      const ParameterGroup group =
          c_.options.groups.empty() ? ParameterGroup{} : c_.options.groups[g];
      const float decay = group.weight_decay >= 0 ? group.weight_decay : rule_.weight_decay();
      all[2 * g] = {group.learning_rate_scale, 0};
      all[2 * g + 1] = {group.learning_rate_scale, decay};
    }
    return all;
  }

  void make_tables() {
    StepTables& tables = c_.tables;
    tables = {};
    tables.groups.resize(c_.units.size());
    std::uint64_t windows = 0;
    const std::vector<TensorRecord>& tensors = c_.registry.tensors();
    for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
      add_norm_range(*tensor, windows);
    }
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      for (std::uint32_t g = 0; g < c_.layout(u).group_count; ++g) {
        if (c_.layout(u).groups[g].trainable) add_update_ranges(u, g);
      }
    }
  }

  void add_norm_range(const TensorRecord& tensor, std::uint64_t& windows) {
    if (!tensor.info.trainable) return;
    const layout::Range part =
        layout::owned(c_.registry.group_of(tensor), tensor.placement, tensor.elements, c_.rank());
    if (part.empty()) return;
    const std::uint32_t g = tensor.placement.group;
    const layout::Range held = c_.state_range(tensor.unit, g);
    const StepMemory& at = c_.map.step_memory;
    NormRange range;
    range.dtype = c_.reduced_dtype(tensor.unit, g);
    const std::uint64_t first = tensor.placement.offset + part.begin - held.begin;
    range.data = c_.reduced(tensor.unit, g) + first * size_of(range.dtype);
    range.first_cell = part.begin / kCell;
    range.elements = part.size();
    range.nodes = c_.template step_array<double>(at.nodes) +
                  c_.norm_tree->stride() * static_cast<std::uint64_t>(c_.rank()) +
                  c_.norm_tree->first_node(tensor, c_.rank());
    range.partials = c_.template step_array<double>(at.partials) + windows;
    range.first_window = windows;
    windows +=
        windows_of(range.first_cell, range.first_cell + cells_of(range.elements), B::norm_window);
    c_.tables.norm_ranges.push_back(range);
    c_.tables.norm_units.push_back(tensor.unit);
  }

  // The parts of a group's tensors that this rank updates: not the padding between them.
  void add_update_ranges(std::uint32_t u, std::uint32_t g) {
    std::vector<ElementRange>& all = c_.tables.update_ranges;
    GroupRanges of{g, static_cast<std::uint32_t>(all.size()), 0};
    const layout::Range held = c_.state_range(u, g);
    std::uint32_t blocks = 0;
    for (std::uint32_t id : c_.registry.unit(u).tensors) {
      const TensorRecord& tensor = c_.registry.tensor(id);
      if (tensor.placement.group != g) continue;
      layout::Range part{0, tensor.elements};
      if (c_.policy.strategy.shard_optimizer) {
        part = layout::owned(c_.registry.group_of(tensor), tensor.placement, tensor.elements,
                             c_.rank());
      }
      if (part.empty()) continue;
      all.push_back({tensor.placement.offset + part.begin - held.begin, part.size(),
                     setting_of(tensor), blocks, part.begin, tensor.info.id});
      blocks += range_blocks(part.size());
      ++of.count;
    }
    if (of.count > 0) c_.tables.groups[u].push_back(of);
  }

  template <class T>
  void put(std::uint64_t offset, const std::vector<T>& values) {
    if (values.empty()) return;
    if constexpr (B::holds_memory) {
      c_.await(c_.compute());  // under the time-out, as the write would without one
      c_.backend.write(c_.compute(), c_.memory + c_.map.step + offset, values.data(),
                       values.size() * sizeof(T));
    }
  }

  Context<Bk>& c_;
  Gathering<Bk>& gathering_;
  Reducing<Bk>& reducing_;
  const UpdateRule<B>& rule_;
  typename B::Event event_;
  std::vector<unsigned char> included_;
  UpdateArrays arrays_;
};

}  // namespace tessera::engine
