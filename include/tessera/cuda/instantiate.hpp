// Kernels for units that nvcc does not compile.
#pragma once

#include "tessera/cuda/delay.hpp"
#include "tessera/cuda/elementwise.hpp"
#include "tessera/cuda/for_each.hpp"
#include "tessera/cuda/norm.hpp"
#include "tessera/cuda/rank_sum.hpp"
#include "tessera/cuda/runtime.hpp"
#include "tessera/cuda/self_test.hpp"
#include "tessera/engine/step_functions.hpp"
#include "tessera/engine/update_rule.hpp"

/// Once in a .cu for each optimizer that g++ units give to Shard<..., Cuda, Optimizer>: with Fp32,
/// Bf16 and WithGradients.
#define TESSERA_CUDA_INSTANTIATE(Optimizer)                                         \
  template class tessera::engine::ElementwiseRule<tessera::CudaRuntime, Optimizer>; \
  template void tessera::detail::instantiate_cuda<Optimizer>();

/// Besides, for each further precision they use with the optimizer; once for precisions that differ
/// in their gradients' type only.
#define TESSERA_CUDA_INSTANTIATE_FOR(Optimizer, ...)                               \
  template class tessera::engine::ElementwiseRule<tessera::CudaRuntime, Optimizer, \
                                                  __VA_ARGS__::describe().storage()>;

namespace tessera::detail {

#if defined(__CUDACC__)
/// Mentions what the engine launches whatever the optimizer, so that it is made. Never called.
template <class>
void instantiate_cuda() {
  launch_delay(nullptr, std::uint64_t{0});
  launch_norm(nullptr, NormKind::l2, nullptr, 0, 0);
  launch_rank_sum<float, float>(nullptr, 0, nullptr, 0, 0, false, nullptr);
  launch_rank_sum<bf16, float>(nullptr, 0, nullptr, 0, 0, false, nullptr);
  launch_rank_sum<bf16, bf16>(nullptr, 0, nullptr, 0, 0, false, nullptr);
  launch_for_each(nullptr, 0, engine::SetLearningRate{});
  launch_for_each(nullptr, 0, engine::FoldTensor{});
  launch_for_each(nullptr, 0, engine::FoldSlices{});
  launch_for_each(nullptr, 0, engine::DecideStep{});
  launch_for_each(nullptr, 0, SelfTestDoubles{});
  launch_elementwise(nullptr, 0, SelfTestFloats{}, Out<bf16>{}, Out<float>{}, In<float>{},
                     In<float>{});
  launch_elementwise(nullptr, 0, engine::Widen{}, In<bf16>{}, Out<float>{});
}
#endif

}  // namespace tessera::detail
