// The decisions of a step, as functions that run where the training state is.
#pragma once

#include <cstdint>

#include "tessera/engine/step_memory.hpp"
#include "tessera/exact/cell_tree.hpp"
#include "tessera/exact/classify.hpp"
#include "tessera/exact/rounding_mode.hpp"
#include "tessera/exact/strict_double.hpp"

namespace tessera::engine {

/// A value that the caller knows, written in the order of the stream.
struct SetLearningRate {
  StepScalars* scalars;
  float learning_rate;
  TESSERA_HD void operator()(std::uint64_t) const { scalars->learning_rate = learning_rate; }
};

/// The norm of all tensors, added up in the order of registration; whether it is finite; and
/// torch.nn.utils.clip_grad_norm_'s factor, at most 1.
struct DecideStep {
  NormKind kind;
  float clip_norm;  ///< 0: no clipping
  std::uint64_t tensor_count;
  const double* tensor_norms;
  StepScalars* scalars;

  TESSERA_HD void operator()(std::uint64_t) const {
    const StrictRounding strict;
    double total = 0;
    for (std::uint64_t i = 0; i != tensor_count; ++i) {
      total = detail::fold_pair(kind, total, tensor_norms[i]);
    }
    if (kind == NormKind::l2) total = sqrt(StrictDouble{total}).x;
    scalars->norm = detail::pin(detail::with_one_nan(total));
    scalars->skipped = detail::is_finite(total) ? 0 : 1;
    scalars->clip_factor = 1;
    if (!(clip_norm > 0)) return;
    const StrictDouble limit{static_cast<double>(clip_norm)};
    const float factor = (limit / (StrictDouble{total} + StrictDouble{1e-6})).to_float();
    scalars->clip_factor = factor < 1 ? detail::pin(factor) : 1.0f;
  }
};

/// for_each tensor: what the ranks of the tensor axis found of it, to one value that all agree on:
/// of a sliced tensor all parts, in rank order; of another, which they all have, the first rank's.
struct FoldSlices {
  NormKind kind;
  std::uint64_t tensor_count;
  std::uint64_t ranks;
  const NormTensor* tensors;
  const double* parts;  ///< by rank and tensor
  double* values;

  TESSERA_HD void operator()(std::uint64_t i) const {
    const StrictRounding strict;
    double value = parts[i];
    for (std::uint64_t rank = 1; tensors[i].sliced != 0 && rank != ranks; ++rank) {
      value = detail::fold_pair(kind, value, parts[rank * tensor_count + i]);
    }
    values[i] = detail::pin(detail::with_one_nan(value));
  }
};

/// bf16 parameters to the fp32 master weights they begin as.
struct Widen {
  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  TESSERA_HD void operator()(const R& rounded, R& weight) const {
    weight = rounded;
  }
};

}  // namespace tessera::engine
