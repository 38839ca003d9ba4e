// CUDA's own bf16 as the element type of tensors. That it is known is a matter of compiling;
// element_test's order of includes is the harder one, in which cuda_bf16.h comes last.
#include <tessera/cuda.hpp>

#include <cuda_bf16.h>
#include <doctest/doctest.h>

namespace ts = tessera;

static_assert(ts::Element<__nv_bfloat16>);
static_assert(ts::ElementTraits<__nv_bfloat16>::dtype == ts::DType::bf16);

TEST_CASE("tensors of __nv_bfloat16 are trained, and their gradients are of that type") {
  __nv_bfloat16* weight = nullptr;
  ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Bf16, ts::Cuda> model{ts::Mesh<ts::Cuda>::single()};
  const ts::Unit unit = model.add_unit("u", ts::tensor(weight, {8, 8}));
  model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
  auto lease = model.backward(unit);
  __nv_bfloat16* const gradient = lease.gradient(weight);
  CHECK(gradient != nullptr);
  CHECK(weight != nullptr);
  lease.close();
  CHECK(model.step().get().step == 1);
  CHECK(model.full(ts::State::parameter(), weight) == std::vector<float>(64, 1.0f));
}
