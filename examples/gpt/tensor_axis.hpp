// How a layer's parts come together over the ranks of the mesh's tensor axis, on the host.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>
#include <tessera/tessera.hpp>

#include "arena.hpp"
#include "config.hpp"
#include "element.hpp"
#include "whole_layers.hpp"

namespace gpt {

/// WholeLayers over several ranks: attention's heads, the MLP's columns and the vocabulary are
/// shared out, norms and the residual stream are not, or by rows (`sequence_parallel`). Calls are
/// collectives of the tensor axis. With one rank it is WholeLayers.
template <class Backend>
class TensorAxis {
 public:
  /// Collective over the axis. `config.tensor` is this rank's place on it; `sequences` the most
  /// that one call works on.
  TensorAxis(tessera::Mesh<Backend>& mesh, const Config& config, std::size_t sequences,
             bool sequence_parallel) {
    if (mesh.shape().tensor > 1) {
      split_ = std::make_unique<Split>(mesh, config, sequences, sequence_parallel);
    }
  }

  std::size_t own_rows(std::size_t rows) const { return split_ ? split_->own(rows).size : rows; }

  const float* enter(std::size_t rows, std::size_t width, const float* own) {
    return split_ ? split_->region.enter(rows, width, own, split_->all_rows) : own;
  }
  float* enter_backward(std::size_t rows, std::size_t width, float* partial) {
    return split_ ? split_->region.enter_backward(rows, width, partial) : partial;
  }
  const float* leave_backward(std::size_t rows, std::size_t width, const float* own) {
    return split_ ? split_->region.leave_backward(rows, width, own, split_->all_rows) : own;
  }

  /// Bias and residual are added to the sum, once.
  void leave_linear(LinearShape s, const float* x, const float* w, const float* bias,
                    const float* residual, float* y) {
    if (!split_) return whole_.leave_linear(s, x, w, bias, residual, y);
    float* const partial = split_->partial(y);
    multiply(s.rows, s.out, s.in, 1.0f, {x, s.in}, {w, s.in, true}, 0.0f, partial, s.out);
    split_->region.leave(s.rows, s.out, partial, y);
    const std::size_t own = own_rows(s.rows);
    for (std::size_t row = 0; row < own; ++row, y += s.out, residual += s.out) {
      for (std::size_t i = 0; i < s.out; ++i) y[i] += residual[i] + bias[i];
    }
  }

  Gradient<float> part(Gradient<float> gradient, std::size_t n) {
    return split_ ? split_->part(gradient, n) : gradient;
  }
  void sum_parts() {
    if (split_) split_->sum_parts();
  }

  template <class P>
  void embed_forward(const Config& c, std::size_t batch, const Token* tokens, const P* token_table,
                     const P* position_table, float* x) {
    if (!split_) return whole_.embed_forward(c, batch, tokens, token_table, position_table, x);
    const std::size_t rows = batch * c.context;
    float* const partial = split_->partial(x);
    tessera::embed_share(std::span(tokens, rows), c.own_vocabulary(), c.width, token_table,
                         partial);
    split_->region.leave(rows, c.width, partial, x);
    const tessera::Share own = split_->own(rows);
    for (std::size_t row = own.begin; row < own.end(); ++row, x += c.width) {
      const P* const position = position_table + row % c.context * c.width;
      for (std::size_t i = 0; i < c.width; ++i) x[i] += to_float(position[i]);
    }
  }

  /// Every rank adds all rows to its tokens and to the positions, which stay the same everywhere.
  void embed_backward(const Config& c, std::size_t batch, const Token* tokens, const float* dx,
                      Gradient<float> token_table, Gradient<float> position_table) {
    if (!split_) return whole_.embed_backward(c, batch, tokens, dx, token_table, position_table);
    const std::size_t rows = batch * c.context;
    const float* const all = leave_backward(rows, c.width, dx);
    const tessera::Share vocabulary = c.own_vocabulary();
    if (!token_table.accumulate) clear(token_table.data, vocabulary.size * c.width);
    if (!position_table.accumulate) clear(position_table.data, c.context * c.width);
    tessera::embed_share_backward(std::span(tokens, rows), vocabulary, c.width, all,
                                  token_table.data);
    for (std::size_t row = 0; row < rows; ++row) {
      float* const position = position_table.data + row % c.context * c.width;
      for (std::size_t i = 0; i < c.width; ++i) position[i] += all[row * c.width + i];
    }
  }

  LossSum loss(const Config& c, std::size_t rows, const Token* targets, float scale,
               float* logits) {
    if (!split_) return whole_.loss(c, rows, targets, scale, logits);
    const tessera::RowLosses losses =
        split_->cross_entropy(std::span(targets, rows), c.own_vocabulary(), scale, logits);
    return {losses.sum, static_cast<std::size_t>(losses.count)};
  }

  const float* all_logits(const Config& c, std::size_t rows, const float* logits) {
    if (!split_) return logits;
    split_->group.gather_columns(rows, c.vocabulary, logits, split_->all_columns);
    return split_->all_columns;
  }

 private:
  using Kind = tessera::LargestCall::Kind;

  static void clear(float* values, std::size_t n) { std::memset(values, 0, n * sizeof(float)); }

  /// What only several ranks need.
  struct Split {
    static constexpr std::size_t kNorms = 2;  // of a unit, a weight and a bias each

    Split(tessera::Mesh<Backend>& mesh, const Config& c, std::size_t sequences,
          bool sequence_parallel)
        : group(mesh, {{sequence_parallel ? Kind::rows : Kind::sum, sequences * c.context, c.width},
                       {Kind::sum, 2 * kNorms, c.width},
                       {Kind::columns, c.context, c.vocabulary}}),
          region(group, sequence_parallel ? tessera::RowLayout::shared : tessera::RowLayout::whole),
          cross_entropy(group, sequences * c.context) {
      const bool shared = sequence_parallel;
      const auto carve = [&](Arena& from) {
        all_columns = from.take(c.context * c.vocabulary);
        if (!shared) return;
        all_rows = from.take(sequences * c.context * c.width);
        parts = from.take(2 * kNorms * c.width);
      };
      Arena counted;
      carve(counted);
      arena = Arena(counted.used());
      carve(arena);
    }

    tessera::Share own(std::size_t rows) const { return region.own(rows); }

    /// Where all rows of what leaves a region are computed, of which `own` becomes this rank's.
    float* partial(float* own) const { return all_rows == nullptr ? own : all_rows; }

    Gradient<float> part(Gradient<float> gradient, std::size_t n) {
      if (all_rows == nullptr) return gradient;
      float* const at = parts + parts_used;
      parts_used += n;
      whole_of_parts.push_back({gradient, n});
      return {at, false};
    }

    /// Earlier micro-steps' sums are added to afterwards: they are of all ranks already.
    void sum_parts() {
      group.sum(parts, parts_used);
      const float* from = parts;
      for (const auto& [to, n] : whole_of_parts) {
        for (std::size_t i = 0; i < n; ++i) to.data[i] = (to.accumulate ? to.data[i] : 0) + from[i];
        from += n;
      }
      whole_of_parts.clear();
      parts_used = 0;
    }

    tessera::TensorGroup<Backend> group;
    tessera::ParallelRegion<Backend> region;
    tessera::VocabularyCrossEntropy<Backend> cross_entropy;
    Arena arena;
    float* all_columns = nullptr;
    float* all_rows = nullptr;  // of a matrix whose rows are shared out; null where none are
    float* parts = nullptr;
    std::size_t parts_used = 0;
    std::vector<std::pair<Gradient<float>, std::size_t>> whole_of_parts;
  };

  WholeLayers whole_;
  std::unique_ptr<Split> split_;
};

}  // namespace gpt
