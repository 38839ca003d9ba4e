// What Shard and its leases refuse to compile, and the sentence that they say.

#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <tessera/tessera.hpp>

namespace ts = tessera;

namespace user {
struct NoPolicy {};
// An optimizer whose elements need their neighbours: no element-wise apply.
struct Muon {
  float learning_rate = 0;
  float weight_decay = 0;
};
// 16-bit moments: an apply for one state where two are declared.
struct WrongStates : ts::AdamW {
  static constexpr int state_count = 1;
  static constexpr std::array<const char*, 1> state_names{"m"};
};
}  // namespace user

template <class... Policies>
using Of = ts::Shard<Policies...>;
using Model = Of<ts::Zero3<>, ts::OnDevice, ts::Fp32, ts::Host, ts::AdamW>;

float initial(const ts::TensorInfo&, std::uint64_t) { return 0; }

void control() {
  std::vector<float> vector(3);
  std::span<float> span(vector);
  float* pointer = nullptr;
  Model model(ts::Mesh<ts::Host>::single());
  ts::Unit unit = model.add_unit("u", vector, span, ts::tensor(pointer, {3}));
  model.materialize(initial);
  {
    ts::ForwardLease<ts::Host> lease = model.forward(unit);
    ts::ForwardLease<ts::Host> moved = std::move(lease);
  }
  {
    auto lease = model.backward(unit);
    float* gradient = lease.gradient(pointer);
    static_cast<void>(gradient);
  }
  const auto scope = model.accumulate();
  static_assert(!std::is_copy_constructible_v<Model> && !std::is_copy_assignable_v<Model>);
}

void test(Model& model, ts::Unit unit) {
  static_cast<void>(model);
  static_cast<void>(unit);
#if defined(CASE_no_strategy)
  // EXPECT: tessera: the first argument of Shard is a strategy: Replicate, Zero1, Zero2, Zero3<> or ByBudget
  Of<user::NoPolicy>* shard = nullptr;
  shard->rank();
#elif defined(CASE_policies_in_the_wrong_order)
  // EXPECT: tessera: the first argument of Shard is a strategy: Replicate, Zero1, Zero2, Zero3<> or ByBudget
  Of<ts::OnDevice, ts::Zero3<>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_no_offload)
  // EXPECT: tessera: the second argument of Shard is an offload policy: OnDevice
  Of<ts::Zero1, ts::Fp32>* shard = nullptr;
  shard->rank();
#elif defined(CASE_no_precision)
  // EXPECT: tessera: the third argument of Shard is a precision: Fp32, Bf16 or what is made of them
  Of<ts::Zero1, ts::OnDevice, float>* shard = nullptr;
  shard->rank();
#elif defined(CASE_no_backend)
  // EXPECT: tessera: the fourth argument of Shard is a backend: Host, Cuda, CudaNccl or Sim
  Of<ts::Zero1, ts::OnDevice, ts::Fp32, user::NoPolicy>* shard = nullptr;
  shard->rank();
#elif defined(CASE_no_optimizer)
  // EXPECT: tessera: the fifth argument of Shard is an element-wise optimizer: AdamW, Lion, Sgd, or a type with their members
  Of<ts::Zero1, ts::OnDevice, ts::Fp32, ts::Host, user::Muon>* shard = nullptr;
  shard->rank();
#elif defined(CASE_moments_the_optimizer_does_not_take)
  // EXPECT: tessera: the fifth argument of Shard is an element-wise optimizer: AdamW, Lion, Sgd, or a type with their members
  Of<ts::Zero1, ts::OnDevice, ts::Fp32, ts::Host, user::WrongStates>* shard = nullptr;
  shard->rank();
#elif defined(CASE_gradients_that_are_no_numbers)
  // EXPECT: tessera: WithGradients takes float or tessera::bf16 as the gradients' type
  Of<ts::Zero1, ts::OnDevice, ts::WithGradients<ts::Bf16, int>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_sums_that_are_no_numbers)
  // EXPECT: tessera: WithReduced takes float or tessera::bf16 as the reduced gradients' type
  Of<ts::Zero1, ts::OnDevice, ts::WithReduced<ts::Bf16, int>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_sums_narrower_than_gradients)
  // EXPECT: tessera: WithReduced<P, bf16> needs a policy with bf16 gradients
  Of<ts::Zero1, ts::OnDevice, ts::WithReduced<ts::Fp32, ts::bf16>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_gradients_wider_than_sums)
  // EXPECT: tessera: float gradients of a policy whose reduced gradients are bf16
  using Reduced = ts::WithReduced<ts::Bf16, ts::bf16>;
  Of<ts::Zero1, ts::OnDevice, ts::WithGradients<Reduced, float>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_a_split_master_of_fp32)
  // EXPECT: tessera: SplitMaster needs a policy with bf16 parameters
  Of<ts::Zero1, ts::OnDevice, ts::SplitMaster<ts::Fp32>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_moments_that_are_no_numbers)
  // EXPECT: tessera: WithMoments takes float or tessera::bf16 as the moments' type
  Of<ts::Zero1, ts::OnDevice, ts::WithMoments<ts::Fp32, int>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_zero3_never)
  // EXPECT: tessera: Zero3 reshards after_forward or after_backward; for parameters kept until the step use Zero2
  Of<ts::Zero3<ts::Reshard::never>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_zero3_after_step)
  // EXPECT: tessera: Zero3 reshards after_forward or after_backward; for parameters kept until the step use Zero2
  Of<ts::Zero3<ts::Reshard::after_step>>* shard = nullptr;
  shard->rank();
#elif defined(CASE_copied_shard)
  // EXPECT: deleted
  Model copy = model;
#elif defined(CASE_assigned_shard)
  // EXPECT: deleted
  model = Model(ts::Mesh<ts::Host>::single());
#elif defined(CASE_copied_lease)
  // EXPECT: Lease
  auto lease = model.forward(unit);
  auto copy = lease;
#elif defined(CASE_assigned_lease)
  // EXPECT: Lease
  auto lease = model.forward(unit);
  lease = model.forward(unit);
#elif defined(CASE_values_that_are_no_function)
  // EXPECT: tessera: materialize takes from_tensors, from_rank(r), in_place(f), or a function float(const TensorInfo&, std::uint64_t index)
  model.materialize(3);
#elif defined(CASE_values_from_a_wrong_function)
  // EXPECT: tessera: materialize takes from_tensors, from_rank(r), in_place(f), or a function float(const TensorInfo&, std::uint64_t index)
  model.materialize([](const std::string&) { return 0.0f; });
#elif defined(CASE_values_from_a_function_of_the_index_alone)
  // EXPECT: tessera: materialize takes from_tensors, from_rank(r), in_place(f), or a function float(const TensorInfo&, std::uint64_t index)
  model.materialize([](std::uint64_t) { return 0.0f; });
#elif defined(CASE_rvalue_tensor)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  static_cast<void>(model.add_unit("u", std::vector<float>(3)));
#elif defined(CASE_rvalue_span)
  // EXPECT: tessera: pass tensors by lvalue: the Shard keeps their address
  float memory[3] = {};
  static_cast<void>(model.add_unit("u", std::span<float>(memory)));
#elif defined(CASE_const_tensor)
  // EXPECT: tessera: a const tensor cannot be sharded
  const std::vector<float> constant(3);
  static_cast<void>(model.add_unit("u", constant));
#elif defined(CASE_trained_integers)
  // EXPECT: tessera: only f32, bf16 and f16 tensors are trained: pass this one as ts::frozen(tensor)
  std::vector<int> ids(3);
  static_cast<void>(model.add_unit("u", ids));
#elif defined(CASE_raw_pointer)
  // EXPECT: tessera: a raw pointer has no shape: write ts::tensor(pointer, {rows, columns})
  float* pointer = nullptr;
  static_cast<void>(model.add_unit("u", pointer));
#endif
}
