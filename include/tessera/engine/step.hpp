// The end of a step: norm, clipping, agreement on inf and NaN, and the update of the pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/gather.hpp"
#include "tessera/engine/update_rule.hpp"
#include "tessera/exact/classify.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera::engine {

template <Backend Bk>
class Stepping {
 public:
  using B = typename Bk::Runtime;

  Stepping(Context<Bk>& context, Gathering<Bk>& gathering, UpdateRule<B>& rule)
      : c_(context), gathering_(gathering), rule_(rule) {}

  /// All reductions have been issued. Sets the report's norm, clipped_norm and skipped.
  void run(float learning_rate, StepReport& report) {
    included_.assign(c_.units.size(), 0);
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      included_[u] = c_.units[u].reduced ? 1 : 0;
      if (c_.facts[u].trainable && !included_[u] &&
          c_.options.unused_units == UnusedUnits::refuse) {
        detail::fail("tessera: step(): unit '", c_.registry.unit(u).name,
                     "' had no backward lease in this step, and Options::unused_units is refuse");
      }
    }
    if (!c_.policy.strategy.shard_optimizer && c_.world() > 1) gather_sums();
    wait_for_reductions();
    report.norm = norm();
    const float factor = clip_factor(report.norm);
    report.clipped_norm = report.norm * static_cast<double>(factor);
    report.skipped = !detail::is_finite(report.norm);
    if (report.skipped) {
      report.clipped_norm = report.norm;
    } else {
      update(factor, learning_rate);
    }
    for (UnitState<B>& unit : c_.units) unit.reduced = false;
  }

 private:
  // Replicate: every rank updates everything, so it needs everyone's sums. They are fp32, so that
  // the bits are those of the strategies in which only the owner updates.
  void gather_sums() {
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (!included_[u]) continue;
      const layout::UnitLayout& at = c_.layout(u);
      std::vector<GatherSegment> segments;
      std::uint64_t total = 0;
      for (std::uint32_t g = 0; g < at.group_count; ++g) {
        if (!at.groups[g].trainable) continue;
        const std::uint64_t elements = at.groups[g].piece_elements;
        float* full = c_.reduced(u, g);
        segments.push_back({full + elements * static_cast<std::uint64_t>(c_.rank()), full,
                            elements * sizeof(float), elements * sizeof(float)});
        total += elements * sizeof(float);
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

  double norm() {
    const NormTree& tree = *c_.norm_tree;
    if (tree.stride() == 0) return 0;
    auto* all = reinterpret_cast<double*>(c_.memory + c_.map.scalars);
    double* own = all + tree.stride() * static_cast<std::uint64_t>(c_.rank());
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      if (!tensor.info.trainable || !included_[tensor.unit]) continue;
      const layout::GroupLayout& group = c_.registry.group_of(tensor);
      const layout::Range part = layout::owned(group, tensor.placement, tensor.elements, c_.rank());
      if (part.empty()) continue;
      const layout::Range held = c_.state_range(tensor.unit, tensor.placement.group);
      const float* gradients = c_.reduced(tensor.unit, tensor.placement.group) +
                               tensor.placement.offset + part.begin - held.begin;
      c_.backend.norm_nodes(c_.compute(), c_.options.norm, gradients, part.begin / kCell,
                            part.size(), own + tree.offset(tensor, c_.rank()));
    }
    if (c_.world() > 1) exchange(own, all);
    values_.resize(tree.stride() * static_cast<std::uint64_t>(c_.world()));
    c_.backend.read(c_.compute(), values_.data(), all, values_.size() * sizeof(double));
    c_.check();
    return tree.norm(c_.options.norm, values_.data(), included_);
  }

  void exchange(const double* own, double* all) {
    const std::uint64_t bytes = c_.norm_tree->stride() * sizeof(double);
    const GatherSegment segment{own, all, bytes, bytes};
    c_.backend.record(event_, c_.compute());
    c_.backend.wait(c_.reducing(), event_);
    const std::size_t collective =
        c_.recorder.begin(Span::collective, "norm", "", StreamKind::reduce, bytes);
    c_.reduce_comm.all_gather(c_.reducing(), {CollectiveKind::scalars, "the gradient norm"},
                              {&segment, 1});
    c_.recorder.end(collective);
    const std::size_t wait =
        c_.recorder.begin(Span::wait, "wait for the norm", "", StreamKind::compute);
    c_.backend.record(event_, c_.reducing());
    c_.backend.wait(c_.compute(), event_);
    c_.recorder.end(wait);
  }

  // torch.nn.utils.clip_grad_norm_'s coefficient, at most 1.
  float clip_factor(double norm) const {
    if (c_.options.clip_norm <= 0) return 1;
    const StrictRounding strict;
    const StrictDouble limit{static_cast<double>(c_.options.clip_norm)};
    const float factor = (limit / (StrictDouble{norm} + StrictDouble{1e-6})).to_float();
    return factor < 1 ? factor : 1;
  }

  void update(float clip, float learning_rate) {
    const std::size_t span = c_.recorder.begin(Span::other, "update", "", StreamKind::compute);
    rule_.advance();
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (!included_[u]) continue;
      for (std::uint32_t id : c_.registry.unit(u).tensors) {
        update(c_.registry.tensor(id), clip, learning_rate);
      }
      gathering_.reshard(u);  // the other ranks' pieces are stale
    }
    c_.backend.record(c_.updated, c_.compute());
    c_.recorder.end(span);
  }

  void update(const TensorRecord& tensor, float clip, float learning_rate) {
    if (!tensor.info.trainable) return;
    const std::uint32_t u = tensor.unit;
    const std::uint32_t g = tensor.placement.group;
    const layout::Range held = c_.state_range(u, g);
    layout::Range part{0, tensor.elements};
    if (c_.policy.strategy.shard_optimizer) {
      part =
          layout::owned(c_.registry.group_of(tensor), tensor.placement, tensor.elements, c_.rank());
    }
    if (part.empty()) return;
    const std::uint64_t at = tensor.placement.offset + part.begin - held.begin;
    arrays_.elements = part.size();
    arrays_.weights = c_.master(u, g) + at;
    arrays_.gradients = c_.reduced(u, g) + at;
    arrays_.parameters = nullptr;
    if (PrecisionDescription::has_master(tensor.info.dtype)) {
      std::byte* own = c_.policy.strategy.shard_optimizer
                           ? c_.piece(u, g)
                           : c_.memory + c_.map.units[u].parameters + c_.layout(u).full_offset(g);
      arrays_.parameters = reinterpret_cast<bf16*>(own) + at;
    }
    arrays_.moments.clear();
    for (int m = 0; m < c_.moments; ++m) arrays_.moments.push_back(c_.moment(u, g, m) + at);
    const ParameterGroup group = c_.options.groups.empty()
                                     ? ParameterGroup{}
                                     : c_.options.groups[static_cast<std::size_t>(tensor.group)];
    rule_.update(c_.backend, c_.compute(), arrays_, clip, learning_rate, group, tensor.decay);
  }

  Context<Bk>& c_;
  Gathering<Bk>& gathering_;
  UpdateRule<B>& rule_;
  typename B::Event event_;
  std::vector<char> included_;
  std::vector<double> values_;
  UpdateArrays arrays_;
};

}  // namespace tessera::engine
