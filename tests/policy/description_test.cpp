// What the policy types are turned into.
#include <type_traits>

#include <doctest/doctest.h>

#include <tessera/policy/description.hpp>
#include <tessera/policy/offload.hpp>
#include <tessera/policy/precision.hpp>
#include <tessera/policy/strategy.hpp>

namespace ts = tessera;

namespace {

template <class S>
constexpr ts::StrategyDescription kOf = S::describe();
using Keep = ts::Zero3<ts::Reshard::after_backward>;

// What each stage shards, as the ZeRO paper defines it.
static_assert(!kOf<ts::Replicate>.shard_optimizer && !kOf<ts::Replicate>.shard_gradients &&
              !kOf<ts::Replicate>.shard_parameters);
static_assert(kOf<ts::Zero1>.shard_optimizer && !kOf<ts::Zero1>.shard_gradients &&
              !kOf<ts::Zero1>.shard_parameters);
static_assert(kOf<ts::Zero2>.shard_optimizer && kOf<ts::Zero2>.shard_gradients &&
              !kOf<ts::Zero2>.shard_parameters);
static_assert(kOf<ts::Zero3<>>.shard_optimizer && kOf<ts::Zero3<>>.shard_gradients &&
              kOf<ts::Zero3<>>.shard_parameters);

static_assert(kOf<ts::Replicate>.reshard == ts::Reshard::never);
static_assert(kOf<ts::Zero1>.reshard == ts::Reshard::after_step);
static_assert(kOf<ts::Zero2>.reshard == ts::Reshard::after_step);
static_assert(kOf<ts::Zero3<>>.reshard == ts::Reshard::after_forward);
static_assert(kOf<Keep>.reshard == ts::Reshard::after_backward);
static_assert(kOf<ts::ByBudget>.by_budget && !kOf<ts::Zero3<>>.by_budget);
static_assert(kOf<ts::Zero3<>> == kOf<ts::Zero3<ts::Reshard::after_forward>>);
static_assert(!(kOf<ts::Zero3<>> == kOf<Keep>));

static_assert(ts::OnDevice::describe().parameters == ts::Tier::device);
static_assert(ts::OnDevice::describe().gradients == ts::Tier::device);
static_assert(ts::OnDevice::describe().optimizer == ts::Tier::device);

constexpr ts::PrecisionDescription kFp32 = ts::Fp32::describe();
constexpr ts::PrecisionDescription kBf16 = ts::Bf16::describe();
constexpr ts::PrecisionDescription kWide = ts::WithGradients<ts::Bf16, float>::describe();
using ts::DType;

// P075, P072: what is trained, and what the gradients and the wire carry.
static_assert(kFp32.trains(DType::f32) && !kFp32.trains(DType::bf16));
static_assert(kBf16.trains(DType::f32) && kBf16.trains(DType::bf16) && !kBf16.trains(DType::f16));
static_assert(kBf16.gradient_of(DType::bf16) == DType::bf16);
static_assert(kBf16.gradient_of(DType::f32) == DType::f32);  // norms and adapters stay in fp32
static_assert(kWide.gradient_of(DType::bf16) == DType::f32);
static_assert(kBf16.master_bytes(DType::bf16) == 4);
static_assert(kBf16.master_bytes(DType::f32) == 0);  // the parameter is the master

// The type a user's kernel sees is the type the engine reserves.
template <class P, class E>
constexpr bool kAgrees = ts::ElementTraits<typename P::template gradient_element<E>>::dtype ==
                         P::describe().gradient_of(ts::ElementTraits<E>::dtype);
static_assert(kAgrees<ts::Fp32, float>);
static_assert(kAgrees<ts::Bf16, float> && kAgrees<ts::Bf16, ts::bf16>);
static_assert(kAgrees<ts::WithGradients<ts::Bf16, float>, float>);
static_assert(kAgrees<ts::WithGradients<ts::Bf16, float>, ts::bf16>);
static_assert(kAgrees<ts::WithGradients<ts::Fp32, float>, float>);
static_assert(kAgrees<ts::WithReduced<ts::Bf16, ts::bf16>, ts::bf16>);
static_assert(std::is_same_v<ts::Bf16::gradient_element<ts::bf16>, ts::bf16>);

// What sums are kept in; f32 tensors keep f32 sums.
constexpr ts::PrecisionDescription kHalf = ts::WithReduced<ts::Bf16, ts::bf16>::describe();
static_assert(kBf16.reduced_of(DType::bf16) == DType::f32);
static_assert(kHalf.reduced_of(DType::bf16) == DType::bf16);
static_assert(kHalf.reduced_of(DType::f32) == DType::f32);

// What is kept of the master beside the parameter, and of the moments.
constexpr ts::PrecisionDescription kSplit = ts::SplitMaster<>::describe();
constexpr ts::PrecisionDescription kPure = ts::WithMoments<ts::PureBf16<>, ts::bf16>::describe();
static_assert(kSplit.master_of(DType::bf16) == ts::Master::split);
static_assert(kSplit.master_of(DType::f32) == ts::Master::none);
static_assert(kSplit.master_bytes(DType::bf16) == 2 && kSplit.master_bytes(DType::f32) == 0);
static_assert(kSplit.reduced_of(DType::bf16) == DType::f32 && kSplit.moments == DType::f32);
static_assert(kPure.master_bytes(DType::bf16) == 0 && kPure.moments == DType::bf16);
static_assert(kPure.reduced_of(DType::bf16) == DType::bf16);
static_assert(ts::PureBf16<float>::describe().reduced == DType::f32);
static_assert(kAgrees<ts::SplitMaster<ts::WithGradients<ts::Bf16, float>>, ts::bf16>);
static_assert(kAgrees<ts::WithMoments<ts::PureBf16<>, ts::bf16>, ts::bf16>);
// Kernels are shared by what is kept alike.
static_assert(kFp32.storage() == kBf16.storage() && kBf16.storage() == kWide.storage());
static_assert(!(kHalf.storage() == kBf16.storage()) && !(kSplit.storage() == kBf16.storage()));

static_assert(ts::WithReduced<ts::WithReduced<ts::Bf16, ts::bf16>, float>::describe() == kBf16);

struct NotAStrategy {};
struct WrongDescription {
  static constexpr int describe() { return 3; }
};
static_assert(!ts::StrategyPolicy<NotAStrategy> && !ts::StrategyPolicy<WrongDescription>);
static_assert(!ts::StrategyPolicy<ts::OnDevice> && !ts::StrategyPolicy<ts::Fp32>);
static_assert(!ts::OffloadPolicy<ts::Zero1> && !ts::PrecisionPolicy<ts::OnDevice>);

}  // namespace

TEST_CASE("every strategy has a name of its own") {
  const char* names[] = {kOf<ts::Replicate>.name, kOf<ts::Zero1>.name, kOf<ts::Zero2>.name,
                         kOf<ts::Zero3<>>.name,   kOf<Keep>.name,      kOf<ts::ByBudget>.name};
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(std::string_view(names[i]) != names[j]);
  }
}

TEST_CASE("P148: descriptions of precisions are values that compare") {
  CHECK(kFp32 == ts::Fp32::describe());
  CHECK_FALSE(kBf16 == kWide);
  const ts::PolicyDescription a{kOf<ts::Zero1>, ts::OnDevice::describe(), kFp32};
  CHECK(a == ts::PolicyDescription{kOf<ts::Zero1>, ts::OnDevice::describe(), kFp32});
}
