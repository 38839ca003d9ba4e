// The precisions of --precision.
#pragma once

#include <tessera/policy/precision.hpp>

namespace llama {

/// fp32 masters and moments; reduced gradients as they come, in bf16.
using LeanBf16 = tessera::WithReduced<tessera::Bf16, tessera::bf16>;
/// The same, each master in two halves of which the parameter is one.
using SplitBf16 = tessera::SplitMaster<LeanBf16>;
/// Such masters, and sums of gradients in fp32.
using SplitBf16Sum32 = tessera::SplitMaster<tessera::Bf16>;
/// Nothing but bf16, rounded stochastically.
using AllBf16 = tessera::WithMoments<tessera::PureBf16<>, tessera::bf16>;

}  // namespace llama
