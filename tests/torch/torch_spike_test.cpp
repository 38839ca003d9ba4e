// A torch::nn model under leases: rebind by the storage's data pointer, gradients by autograd, and
// the parameters of an unsharded torch::optim::AdamW.

// Ahead of doctest: c10's logging has macros of the same names, and doctest's have to win. Not
// torch/torch.h, which takes half as much time and memory again.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#undef CHECK
#undef CHECK_EQ
#undef CHECK_GE
#undef CHECK_GT
#undef CHECK_LE
#undef CHECK_LT
#undef CHECK_NE

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

/// A torch tensor's storage is pointed at other memory: every view of it, those that autograd saved
/// included, follows. Outside a lease the storage holds null, which no kernel of torch's looks for.
template <>
struct tessera::TensorTraits<torch::Tensor> {
  using element = void;  // known at run time only

  static DType dtype(const torch::Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case torch::kFloat32: return DType::f32;
      case torch::kBFloat16: return DType::bf16;
      case torch::kFloat16: return DType::f16;
      case torch::kFloat64: return DType::f64;
      case torch::kInt64: return DType::i64;
      case torch::kInt32: return DType::i32;
      case torch::kInt16: return DType::i16;
      case torch::kInt8: return DType::i8;
      case torch::kUInt8: return DType::u8;
      case torch::kBool: return DType::boolean;
      default: break;
    }
    throw Error(std::string("tessera: tensors of torch's type ") +
                c10::toString(tensor.scalar_type()) + " cannot be sharded");
  }

  static Shape shape(const torch::Tensor& tensor) {
    return Shape(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
  }

  static void* data(torch::Tensor& tensor) { return tensor.storage().data(); }

  static void rebind(torch::Tensor& tensor, void* memory) {
    // Without a deleter: the memory is the Shard's. What the storage owned until now is freed.
    tensor.storage().set_data_ptr_noswap(c10::DataPtr(memory, tensor.device()));
  }

  // All of its storage, which nobody else uses: a storage can be in one place only.
  static bool contiguous(const torch::Tensor& tensor) {
    return tensor.is_contiguous() && tensor.storage_offset() == 0 &&
           tensor.storage().nbytes() == tensor.nbytes() && tensor.storage().use_count() == 1;
  }
};

namespace {

namespace ts = tessera;

static_assert(ts::RebindableTensor<torch::Tensor>);
static_assert(ts::detail::HasRuntimeDType<torch::Tensor>);

constexpr int kLayers = 4;
constexpr std::array<std::int64_t, kLayers + 1> kWidths{8, 24, 20, 17, 5};
constexpr std::int64_t kRows = 12;  // of the global batch
constexpr int kSteps = 3;
constexpr double kRate = 1e-2;
constexpr double kDecay = 0.1;

/// One unit: a linear layer, behind a GELU unless it is the first.
struct Layer {
  torch::nn::Linear linear{nullptr};
  bool first = false;
  ts::Unit unit = {};

  torch::Tensor forward(const torch::Tensor& x) { return linear(first ? x : torch::gelu(x)); }
};

std::vector<Layer> make_layers() {
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < kLayers; ++i) {
    layers.push_back({torch::nn::Linear(kWidths[i], kWidths[i + 1]), i == 0});
  }
  return layers;
}

/// First values and batches, made on one thread: the ranks would draw from one generator.
struct Problem {
  std::vector<Layer> first = make_layers();
  std::vector<torch::Tensor> x;
  std::vector<torch::Tensor> target;
};

const Problem& problem() {
  static const Problem made = [] {
    torch::set_num_threads(1);
    torch::manual_seed(7);
    Problem problem;
    for (int s = 0; s < kSteps; ++s) {
      problem.x.push_back(torch::randn({kRows, kWidths.front()}));
      problem.target.push_back(torch::randn({kRows, kWidths.back()}));
    }
    return problem;
  }();
  return made;
}

std::vector<Layer> copy_of_first_layers() {
  const torch::NoGradGuard no_grad;
  std::vector<Layer> layers = make_layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].linear->weight.copy_(problem().first[i].linear->weight);
    layers[i].linear->bias.copy_(problem().first[i].linear->bias);
  }
  return layers;
}

using Values = std::vector<std::vector<float>>;

/// The whole batch on one rank, by torch alone.
Values unsharded() {
  std::vector<Layer> layers = copy_of_first_layers();
  std::vector<torch::Tensor> parameters;
  for (Layer& layer : layers) {
    parameters.push_back(layer.linear->weight);
    parameters.push_back(layer.linear->bias);
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(kRate).weight_decay(kDecay));
  for (std::size_t s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    torch::Tensor x = problem().x[s];
    for (Layer& layer : layers) x = layer.forward(x);
    torch::mse_loss(x, problem().target[s]).backward();
    optimizer.step();
  }
  Values values;
  for (const torch::Tensor& parameter : parameters) {
    const auto* data = parameter.data_ptr<float>();
    values.emplace_back(data, data + parameter.numel());
  }
  return values;
}

struct Result {
  Values parameters;
  std::uint64_t parameters_digest = 0;
  std::uint64_t moments_digest = 0;
  /// Backward leases in which the weights lay elsewhere than in forward. Not the first layer's:
  /// only the gradient of a layer's input, which nobody uses there, needs weights.
  int moved = 0;
};

/// One rank's model and what it keeps between forward and backward.
template <class Strategy>
class Trainer {
 public:
  using Model = ts::Shard<Strategy, ts::OnDevice, ts::Fp32>;

  Trainer(const ts::InProcess& ranks, const ts::HostOptions& host)
      : model_(ts::Mesh<ts::Host>(ranks, host),
               ts::AdamW{.learning_rate = static_cast<float>(kRate),
                         .weight_decay = static_cast<float>(kDecay)}) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].unit =
          model_.add_unit("layer" + std::to_string(i), ts::named("w", layers_[i].linear->weight),
                          ts::named("b", layers_[i].linear->bias));
    }
    held_unit_ = model_.add_unit("held", {.outer = true}, ts::frozen(held_));
    model_.materialize(ts::from_tensors);
  }

  /// Each layer's graph by itself, from a detached input to its output. `displaced`: in forward the
  /// lease of another unit is open around the layers', and so their slots are not those of
  /// backward.
  void step_by_layer(std::size_t s, bool displaced = false) {
    std::array<torch::Tensor, kLayers> inputs;
    std::array<torch::Tensor, kLayers> outputs;
    torch::Tensor x = part(problem().x[s]);
    std::optional<ForwardLease> around;
    if (displaced) around.emplace(model_.forward(held_unit_));
    for (std::size_t i = 0; i < kLayers; ++i) {
      auto lease = model_.forward(layers_[i].unit);
      note_forward(i);
      inputs[i] = x.detach().requires_grad_();
      outputs[i] = layers_[i].forward(inputs[i]);
      x = outputs[i];
    }
    around.reset();
    x = x.detach().requires_grad_();
    torch::Tensor dy =
        torch::autograd::grad({torch::mse_loss(x, part(problem().target[s]))}, {x})[0];
    for (std::size_t i = kLayers; i-- > 0;) {
      auto lease = model_.backward(layers_[i].unit);
      note_backward(i);
      torch::nn::Linear& linear = layers_[i].linear;
      const auto gradients =
          torch::autograd::grad({outputs[i]}, {inputs[i], linear->weight, linear->bias}, {dy});
      write(lease.gradient(linear->weight), gradients[1]);
      write(lease.gradient(linear->bias), gradients[2]);
      dy = gradients[0];
    }
    model_.step();
  }

  /// One graph; hooks on the layers' outputs open and close the backward leases, and autograd adds
  /// its gradients to the leases' buffers in place.
  void step_by_hooks(std::size_t s) {
    torch::Tensor x = part(problem().x[s]);
    for (std::size_t i = 0; i < kLayers; ++i) {
      auto lease = model_.forward(layers_[i].unit);
      note_forward(i);
      x = layers_[i].forward(x);
      x.register_hook([this, i](const torch::Tensor&) {
        end_backward();
        begin_backward(i);
      });
    }
    torch::mse_loss(x, part(problem().target[s])).backward();
    end_backward();  // of the first layer
    model_.step();
  }

  Result result() {
    Result result;
    for (Layer& layer : layers_) {
      result.parameters.push_back(model_.full(ts::State::parameter(), layer.linear->weight));
      result.parameters.push_back(model_.full(ts::State::parameter(), layer.linear->bias));
    }
    result.parameters_digest = model_.parameters_digest();
    result.moments_digest = model_.moments_digest();
    result.moved = moved_;
    return result;
  }

  Model& model() { return model_; }
  Layer& layer(std::size_t i) { return layers_[i]; }

 private:
  using ForwardLease = decltype(std::declval<Model&>().forward(ts::Unit{}));
  using BackwardLease = decltype(std::declval<Model&>().backward(ts::Unit{}));

  torch::Tensor part(const torch::Tensor& batch) const {
    const std::int64_t rows = kRows / model_.world_size();
    return batch.narrow(0, rows * model_.rank(), rows);
  }

  static torch::Tensor as_tensor(const ts::Gradient<void>& buffer, const torch::Tensor& like) {
    return torch::from_blob(buffer.data, like.sizes(), torch::kFloat32);
  }
  static void write(const ts::Gradient<void>& buffer, const torch::Tensor& gradient) {
    torch::Tensor to = as_tensor(buffer, gradient);
    if (buffer.accumulate) {
      to.add_(gradient);
    } else {
      to.copy_(gradient);
    }
  }

  void begin_backward(std::size_t i) {
    lease_.emplace(model_.backward(layers_[i].unit));
    leased_ = i;
    note_backward(i);
    for (torch::Tensor* tensor : {&layers_[i].linear->weight, &layers_[i].linear->bias}) {
      const ts::Gradient<void> buffer = lease_->gradient(*tensor);
      tensor->mutable_grad() = as_tensor(buffer, *tensor);
      if (!buffer.accumulate) tensor->mutable_grad().zero_();
    }
  }
  void end_backward() {
    if (!lease_) return;
    layers_[leased_].linear->weight.mutable_grad().reset();
    layers_[leased_].linear->bias.mutable_grad().reset();
    lease_->close();
    lease_.reset();
  }

  void note_forward(std::size_t i) { forward_at_[i] = layers_[i].linear->weight.data_ptr(); }
  void note_backward(std::size_t i) {
    if (i > 0 && layers_[i].linear->weight.data_ptr() != forward_at_[i]) ++moved_;
  }

  std::vector<Layer> layers_ = copy_of_first_layers();
  torch::Tensor held_ = torch::zeros({500});
  ts::Unit held_unit_;
  std::array<const void*, kLayers> forward_at_{};
  int moved_ = 0;
  Model model_;  // behind the layers, which it rebinds when it ends
  std::optional<BackwardLease> lease_;
  std::size_t leased_ = 0;
};

enum class Way { by_layer, displaced, by_hooks };

template <class Strategy>
Result train(int world, Way way = Way::by_layer) {
  (void)problem();
  Result result;
  ts::run_ranks(world, [&](ts::InProcess ranks) {
    Trainer<Strategy> trainer(ranks, {.poison = true});
    for (std::size_t s = 0; s < kSteps; ++s) {
      if (way == Way::by_hooks) {
        trainer.step_by_hooks(s);
      } else {
        trainer.step_by_layer(s, way == Way::displaced);
      }
    }
    Result own = trainer.result();
    if (ranks.rank() == 0) result = std::move(own);
  });
  return result;
}

/// The largest difference, relative to the largest value of the tensor it is in.
double relative_difference(const Values& actual, const Values& expected) {
  REQUIRE(actual.size() == expected.size());
  double worst = 0;
  for (std::size_t t = 0; t < actual.size(); ++t) {
    REQUIRE(actual[t].size() == expected[t].size());
    double largest = 0;
    double difference = 0;
    for (std::size_t i = 0; i < actual[t].size(); ++i) {
      const double value = static_cast<double>(expected[t][i]);
      largest = std::max(largest, std::abs(value));
      // Negated, so that a NaN is the worst.
      const double apart = std::abs(static_cast<double>(actual[t][i]) - value);
      if (!(apart <= difference)) difference = apart;
    }
    if (!(difference / largest <= worst)) worst = difference / largest;
  }
  return worst;
}

}  // namespace

TEST_CASE("torch: a sharded model's parameters are those of an unsharded torch AdamW") {
  (void)problem();
  const Values expected = unsharded();
  for (int world : {1, 2, 3}) {
    CAPTURE(world);
    const Result zero3 = train<ts::Zero3<>>(world);
    CHECK(relative_difference(zero3.parameters, expected) < 1e-6);

    const Result replicate = train<ts::Replicate>(world);
    CHECK(zero3.parameters_digest == replicate.parameters_digest);
    CHECK(zero3.moments_digest == replicate.moments_digest);
  }
}

TEST_CASE("torch: gradients are right where a layer's slot in backward is not that of forward") {
  // The old slot is poisoned or another unit's by then, so a saved view of it would show.
  for (int world : {2, 3}) {
    CAPTURE(world);
    const Result displaced = train<ts::Zero3<>>(world, Way::displaced);
    CHECK(displaced.moved > 0);
    const Result replicate = train<ts::Replicate>(world);
    CHECK(displaced.parameters_digest == replicate.parameters_digest);
    CHECK(displaced.moments_digest == replicate.moments_digest);
  }
}

TEST_CASE("torch: hooks of one autograd graph may open and close the backward leases") {
  for (int world : {2, 3}) {
    CAPTURE(world);
    const Result by_hooks = train<ts::Zero3<>>(world, Way::by_hooks);
    const Result by_layer = train<ts::Zero3<>>(world, Way::by_layer);
    CHECK(by_hooks.parameters_digest == by_layer.parameters_digest);
    CHECK(by_hooks.moments_digest == by_layer.moments_digest);
  }
}

TEST_CASE("torch: outside a lease the weights have no memory") {
  (void)problem();
  Trainer<ts::Zero3<>> trainer(ts::InProcess{}, {});
  torch::nn::Linear& linear = trainer.layer(0).linear;
  CHECK(linear->weight.storage().data() == nullptr);
  {
    auto lease = trainer.model().forward(trainer.layer(0).unit);
    CHECK(linear->weight.storage().data() != nullptr);
    torch::nn::Linear first = problem().first[0].linear;
    CHECK(linear(problem().x[0]).equal(first(problem().x[0])));
  }
  CHECK(linear->weight.storage().data() == nullptr);
}

TEST_CASE("torch: a tensor that is not all of a storage of its own is refused") {
  ts::Shard<ts::Zero3<>> model(ts::Mesh<ts::Host>::single());
  torch::Tensor base = torch::zeros({4, 6});
  torch::Tensor row = base.narrow(0, 1, 1);
  torch::Tensor transposed = base.t();
  torch::Tensor complex = torch::zeros({2}, torch::kComplexFloat);
  CHECK_THROWS_AS(model.add_unit("row", row), ts::Error);
  CHECK_THROWS_AS(model.add_unit("transposed", transposed), ts::Error);
  CHECK_THROWS_AS(model.add_unit("complex", complex), ts::Error);
  torch::Tensor alone = torch::zeros({4, 6});
  CHECK_NOTHROW(model.add_unit("alone", alone));
}

namespace {

/// d sum(x w^T) / dx where w moves between forward and backward, and its first place is reused.
torch::Tensor gradient_after_move(void (*rebind)(torch::Tensor&, float*)) {
  std::array<float, 6> in_forward{1, 2, 3, 4, 5, 6};
  std::array<float, 6> in_backward = in_forward;
  torch::Tensor weight = torch::zeros({2, 3}).requires_grad_();
  torch::Tensor x = torch::ones({1, 3}).requires_grad_();
  rebind(weight, in_forward.data());
  const torch::Tensor y = torch::linear(x, weight);
  in_forward.fill(1000);
  rebind(weight, in_backward.data());
  return torch::autograd::grad({y.sum()}, {x})[0].clone();
}

}  // namespace

TEST_CASE("torch: why rebind swaps the storage's pointer and does not call set_data") {
  const torch::Tensor right = torch::tensor({{5.0f, 7.0f, 9.0f}});
  CHECK(gradient_after_move([](torch::Tensor& tensor, float* memory) {
          ts::TensorTraits<torch::Tensor>::rebind(tensor, memory);
        }).equal(right));
  // Linear saves weight.t(), a view, for the gradient of x. set_data gives the weight another
  // storage and leaves the view on the old one: no error, and what is there by now is used.
  CHECK(gradient_after_move([](torch::Tensor& tensor, float* memory) {
          tensor.set_data(torch::from_blob(memory, tensor.sizes(), torch::kFloat32));
        }).equal(torch::tensor({{2000.0f, 2000.0f, 2000.0f}})));
}
