#pragma once
// A Shard whose policy is chosen at run time.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

#include "support/backend.hpp"

#include "property/tensors.hpp"

namespace property {

/// The engine reads a strategy's description only, so one type serves for all: a sixth of the
/// code to compile. (tests/shard has the types themselves.)
struct StrategyOfCase {
  static inline thread_local tessera::StrategyDescription description{};
  static tessera::StrategyDescription describe() { return description; }
};

inline tessera::StrategyDescription describe(Strategy strategy) {
  switch (strategy) {
    case Strategy::replicate: return tessera::Replicate::describe();
    case Strategy::zero1: return tessera::Zero1::describe();
    case Strategy::zero2: return tessera::Zero2::describe();
    case Strategy::zero3: return tessera::Zero3<>::describe();
    case Strategy::zero3_keep: return tessera::Zero3<tessera::Reshard::after_backward>::describe();
    case Strategy::by_budget: break;
  }
  return tessera::ByBudget::describe();
}

/// A tensor's gradient buffer.
struct Buffer {
  void* data = nullptr;
  std::uint64_t size = 0;
  bool accumulate = false;
  bool is_bf16 = false;
};

class OpenLease {
 public:
  virtual ~OpenLease() = default;
  virtual Buffer gradient(RankTensor& tensor) = 0;
  virtual void close() = 0;
};

/// What a case needs of a Shard.
class Model {
 public:
  virtual ~Model() = default;
  virtual tessera::Unit add_unit(const std::string& name, const tessera::UnitOptions& options,
                                 TensorList& tensors) = 0;
  virtual void materialize(const Case& c) = 0;
  virtual tessera::Plan plan() = 0;
  virtual std::unique_ptr<OpenLease> forward(tessera::Unit unit) = 0;
  virtual std::unique_ptr<OpenLease> backward(tessera::Unit unit, bool gradients_only) = 0;
  virtual std::unique_ptr<OpenLease> accumulate() = 0;
  virtual std::unique_ptr<OpenLease> evaluate() = 0;
  virtual void reduce_gradients() = 0;
  virtual void reshard(tessera::Unit unit) = 0;
  virtual tessera::StepReport step() = 0;
  virtual void set_learning_rate(float rate) = 0;
  virtual std::vector<tessera::TensorInfo> tensors() = 0;
  virtual std::vector<float> full(tessera::State state, const tessera::TensorInfo& tensor) = 0;
  virtual std::vector<std::byte> full_bytes(const tessera::TensorInfo& tensor) = 0;
  virtual void set_full(const tessera::TensorInfo& tensor, const std::vector<float>& values) = 0;
  virtual std::pair<std::uint64_t, std::uint64_t> digests() = 0;
};

template <class Scope>
class OpenScope final : public OpenLease {
 public:
  template <class Make>
  explicit OpenScope(Make&& make) : scope_(make()) {}
  Buffer gradient(RankTensor&) override { return {}; }
  void close() override {}

 private:
  Scope scope_;
};

template <class ShardType, class Lease>
class OpenOf final : public OpenLease {
 public:
  explicit OpenOf(Lease lease) : lease_(std::move(lease)) {}
  void close() override { lease_.close(); }
  Buffer gradient(RankTensor& tensor) override {
    if constexpr (requires(float*& pointer) { lease_.gradient(pointer); }) {
      return tensor.spec.type == Type::bf16 ? of(tensor, tensor.bf16) : of(tensor, tensor.f32);
    } else {
      return {};
    }
  }

 private:
  template <class E>
  Buffer of(RankTensor& tensor, Forms<E>& forms) {
    switch (tensor.spec.form) {
      case Form::pointer: return buffer(lease_.gradient(forms.pointer));
      case Form::span: return buffer(lease_.gradient(forms.span));
      case Form::vector: break;
    }
    return buffer(lease_.gradient(forms.vector));
  }
  template <class E>
  static Buffer buffer(const tessera::Gradient<E>& g) {
    return {g.data, g.size, g.accumulate, sizeof(E) == 2};
  }

  Lease lease_;
};

template <class PrecisionPolicy, class Optimizer>
class ModelOf final : public Model {
 public:
  using Shard = tessera::Shard<StrategyOfCase, tessera::OnDevice, PrecisionPolicy,
                               under_test::Backend, Optimizer>;
  using Forward = tessera::ForwardLease<under_test::Backend>;
  using Backward = tessera::BackwardLease<under_test::Backend, PrecisionPolicy>;

  ModelOf(tessera::Mesh<under_test::Backend> mesh, const Optimizer& optimizer,
          const tessera::Options& options)
      : shard_(std::move(mesh), optimizer, options) {}

  tessera::Unit add_unit(const std::string& name, const tessera::UnitOptions& options,
                         TensorList& tensors) override {
    return tensors.tensors.empty() ? shard_.add_unit(name, options)
                                   : shard_.add_unit(name, options, tensors);
  }
  void materialize(const Case& c) override {
    switch (c.initial) {
      case Initial::from_tensors: shard_.materialize(tessera::from_tensors); break;
      case Initial::from_rank: shard_.materialize(tessera::from_rank(root_of(c))); break;
      case Initial::function:
        shard_.materialize([&](const tessera::TensorInfo& info, std::uint64_t i) {
          return initial_value(c, c.tensors[info.id], i);
        });
    }
  }
  static int root_of(const Case& c) { return c.world / 2; }

  tessera::Plan plan() override { return shard_.plan(); }
  std::unique_ptr<OpenLease> forward(tessera::Unit unit) override {
    return std::make_unique<OpenOf<Shard, Forward>>(shard_.forward(unit));
  }
  std::unique_ptr<OpenLease> backward(tessera::Unit unit, bool gradients_only) override {
    return std::make_unique<OpenOf<Shard, Backward>>(
        gradients_only ? shard_.backward(unit, tessera::gradients_only) : shard_.backward(unit));
  }
  std::unique_ptr<OpenLease> accumulate() override {
    return std::make_unique<OpenScope<tessera::Accumulating<under_test::Backend>>>(
        [&] { return shard_.accumulate(); });
  }
  std::unique_ptr<OpenLease> evaluate() override {
    return std::make_unique<OpenScope<tessera::Evaluating<under_test::Backend>>>(
        [&] { return shard_.evaluate(); });
  }
  void reduce_gradients() override { shard_.reduce_gradients(); }
  void reshard(tessera::Unit unit) override { shard_.reshard(unit); }
  tessera::StepReport step() override { return shard_.step().get(); }
  void set_learning_rate(float rate) override { shard_.set_learning_rate(rate); }
  std::vector<tessera::TensorInfo> tensors() override { return shard_.tensors(); }
  std::vector<float> full(tessera::State state, const tessera::TensorInfo& tensor) override {
    return shard_.full(state, tensor);
  }
  std::vector<std::byte> full_bytes(const tessera::TensorInfo& tensor) override {
    return shard_.full_bytes(tensor);
  }
  void set_full(const tessera::TensorInfo& tensor, const std::vector<float>& values) override {
    shard_.set_full(tessera::State::parameter(), tensor, values);
  }
  std::pair<std::uint64_t, std::uint64_t> digests() override {
    return {shard_.parameters_digest(), shard_.moments_digest()};
  }

 private:
  Shard shard_;
};

template <class PrecisionPolicy>
std::unique_ptr<Model> make_model(const Case& c, tessera::Mesh<under_test::Backend> mesh) {
  switch (c.rule) {
#ifndef TESSERA_PROPERTY_SGD_ONLY  // half the compile time, for the mutation tests
    case Rule::adamw:
      return std::make_unique<ModelOf<PrecisionPolicy, tessera::AdamW>>(
          std::move(mesh), tessera::AdamW{.learning_rate = c.rate, .weight_decay = c.weight_decay},
          c.options);
    case Rule::lion:
      return std::make_unique<ModelOf<PrecisionPolicy, tessera::Lion>>(
          std::move(mesh), tessera::Lion{.learning_rate = c.rate, .weight_decay = c.weight_decay},
          c.options);
#endif
    default: break;
  }
  const tessera::Sgd sgd{.learning_rate = c.rate,
                         .momentum = 0.9f,
                         .weight_decay = c.weight_decay,
                         .nesterov = c.seed % 2 == 0};
  return std::make_unique<ModelOf<PrecisionPolicy, tessera::Sgd>>(std::move(mesh), sgd, c.options);
}

inline std::unique_ptr<Model> make_model(const Case& c, tessera::Mesh<under_test::Backend> mesh) {
  using tessera::bf16;
  using Reduced = tessera::WithReduced<tessera::Bf16, bf16>;
  StrategyOfCase::description = describe(c.strategy);
  switch (c.precision) {
    case Precision::fp32: return make_model<tessera::Fp32>(c, std::move(mesh));
    case Precision::bf16: return make_model<tessera::Bf16>(c, std::move(mesh));
    case Precision::bf16_fp32_gradients:
      return make_model<tessera::WithGradients<tessera::Bf16, float>>(c, std::move(mesh));
    case Precision::bf16_reduced: return make_model<Reduced>(c, std::move(mesh));
    case Precision::split: return make_model<tessera::SplitMaster<Reduced>>(c, std::move(mesh));
    case Precision::pure:
      return make_model<tessera::WithMoments<tessera::PureBf16<>, bf16>>(c, std::move(mesh));
    case Precision::fp32_moments: break;
  }
  return make_model<tessera::WithMoments<tessera::Fp32, bf16>>(c, std::move(mesh));
}

}  // namespace property
