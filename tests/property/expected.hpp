#pragma once
// What every step of a case should give, by the unsharded reference.

#include <cstring>
#include <vector>

#include "property/program.hpp"
#include "support/reference.hpp"

namespace property {

using Bytes = std::vector<unsigned char>;

struct ExpectedStep {
  std::vector<Bytes> weights;  ///< of each tensor, as leases of this step show them
  std::vector<char> reduced;   ///< by tensor: it has a reduced gradient before step()
  std::vector<std::vector<float>> gradients;
  reference::StepResult result;
  std::uint64_t updates = 0;  ///< steps that were not skipped, this one included
};

struct Expected {
  std::vector<ExpectedStep> steps;
  std::vector<Bytes> weights;
  std::vector<reference::Tensor> tensors;  ///< at the end
};

inline reference::Element element_of(Type type) {
  if (type == Type::f32) return reference::Element::f32;
  return type == Type::bf16 ? reference::Element::bf16 : reference::Element::opaque;
}
inline reference::Element gradient_of(const Case& c, Type type) {
  return c.precision == Precision::bf16_fp32_gradients ? reference::Element::f32 : element_of(type);
}
inline reference::Element sum_of(const Case& c, Type type) {
  return reduces_to_bf16(c.precision) ? element_of(type) : reference::Element::f32;
}

inline std::vector<float> initial_floats(const Case& c, const TensorSpec& spec) {
  std::vector<float> values(spec.elements());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial_value(c, spec, i);
  return values;
}
inline Bytes initial_bytes(const Case& c, const TensorSpec& spec) {
  Bytes bytes(spec.elements() * spec.width());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = initial_byte(c, spec, i);
  return bytes;
}

inline Bytes to_bytes(const std::vector<float>& values, reference::Element element) {
  Bytes bytes(values.size() * (element == reference::Element::bf16 ? 2 : 4));
  if (values.empty()) return bytes;
  if (element == reference::Element::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = reference::to_bf16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}
inline Bytes parameter_bytes(const reference::Tensor& tensor) {
  return tensor.element == reference::Element::opaque ? tensor.opaque
                                                      : to_bytes(tensor.weights, tensor.element);
}

inline reference::Tensor reference_tensor(const Case& c, int t) {
  const TensorSpec& spec = c.tensors[static_cast<std::size_t>(t)];
  reference::Tensor tensor;
  tensor.unit = c.owner(t);
  tensor.element = element_of(spec.type);
  tensor.gradient = gradient_of(c, spec.type);
  tensor.sum = sum_of(c, spec.type);
  if (c.precision == Precision::pure || c.precision == Precision::fp32_moments) {
    tensor.moment = reference::Element::bf16;
  }
  if (c.precision == Precision::split) tensor.kept = reference::Master::split;
  if (c.precision == Precision::pure) tensor.kept = reference::Master::none;
  if (!spec.trainable) tensor.kept = reference::Master::fp32;
  tensor.trainable = spec.trainable;
  tensor.decay = spec.decay ? c.weight_decay : 0;
  if (!c.options.groups.empty()) {
    const tessera::ParameterGroup& group = c.options.groups[static_cast<std::size_t>(spec.group)];
    tensor.rate_scale = group.learning_rate_scale;
    if (spec.decay && group.weight_decay >= 0) tensor.decay = group.weight_decay;
  }
  if (tensor.element == reference::Element::opaque) {
    tensor.opaque = initial_bytes(c, spec);
    return tensor;
  }
  tensor.master = initial_floats(c, spec);
  // What a bf16 tensor holds is all there is; a function's values reach the master unrounded.
  if (tensor.element == reference::Element::bf16 && c.initial != Initial::function) {
    for (float& w : tensor.master) w = reference::from_bf16(reference::to_bf16(w));
  }
  reference::Model::take_weights(tensor);
  return tensor;
}

inline reference::Model reference_model(const Case& c) {
  std::vector<reference::Tensor> tensors;
  std::vector<reference::Unit> units(c.units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    units[u].borrowed = c.borrowed(static_cast<int>(u));
    units[u].divisor = static_cast<float>(c.world);
    if (c.options.gradient_divisor > 0) units[u].divisor = c.options.gradient_divisor;
    const float own = c.units[u].options.gradient_divisor;
    if (own > 0) units[u].divisor = own;
    units[u].in_place = c.world == 1 && units[u].divisor == 1;
  }
  for (int t = 0; t < static_cast<int>(c.tensors.size()); ++t) {
    tensors.push_back(reference_tensor(c, t));
    reference::Unit& unit = units[static_cast<std::size_t>(tensors.back().unit)];
    unit.owned.push_back(t);
    if (tensors.back().trainable && tensors.back().gradient != tensors.back().sum) {
      unit.in_place = false;
    }
  }
  reference::Optimizer optimizer;
  optimizer.kind = static_cast<reference::Optimizer::Kind>(c.rule);
  if (c.rule == Rule::lion) optimizer.beta2 = 0.99f;
  optimizer.nesterov = c.seed % 2 == 0;
  return reference::Model(c.world, std::move(tensors), std::move(units), optimizer,
                          c.options.clip_norm, static_cast<reference::Norm>(c.options.norm),
                          c.options.rounding_seed);
}

/// All ranks' kernels of one backward lease.
inline void write_gradients(const Case& c, reference::Model& model, int step,
                            const Action& action) {
  std::vector<int> tensors = c.units[static_cast<std::size_t>(action.unit)].tensors;
  std::sort(tensors.begin(), tensors.end());
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  for (int t : tensors) {
    const TensorSpec& spec = c.tensors[static_cast<std::size_t>(t)];
    if (!spec.trainable) continue;
    std::vector<float> values(spec.elements());
    const std::vector<float> weights = model.tensors()[static_cast<std::size_t>(t)].weights;
    for (int r = 0; r < c.world; ++r) {
      const int times = times_asked(c, step, r, action.lease, spec);
      for (int time = 0; time < times; ++time) {
        const GradientSource source(c, step, r, action.lease, spec, time);
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = source.at(i, action.gradients_only ? 0 : weights[i]);
        }
        model.add(t, r, values);
      }
    }
  }
}

inline void run_program(const Case& c, reference::Model& model, int step) {
  bool accumulating = false;
  std::vector<Action> open;
  for (const Action& action : program(c, step)) {
    switch (action.kind) {
      case Action::Kind::forward: open.push_back(action); break;
      case Action::Kind::backward:
        open.push_back(action);
        model.open_backward(action.unit);
        write_gradients(c, model, step, action);
        break;
      case Action::Kind::close: {
        std::size_t i = open.size() - 1;
        while (open[i].unit != action.unit) --i;
        if (open[i].kind == Action::Kind::backward) {
          model.close_backward(action.unit, !accumulating);
        }
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
      case Action::Kind::begin_accumulate: accumulating = true; break;
      case Action::Kind::end_accumulate: accumulating = false; break;
      case Action::Kind::reduce: model.reduce_held(); break;
      default: break;
    }
  }
}

inline Expected expect(const Case& c) {
  Expected expected;
  reference::Model model = reference_model(c);
  for (int step = 0; step < c.steps; ++step) {
    ExpectedStep now;
    for (int t = 0; t < static_cast<int>(c.tensors.size()); ++t) {
      const TensorSpec& spec = c.tensors[static_cast<std::size_t>(t)];
      if (!is_set(c, spec, step)) continue;
      std::vector<float> values(spec.elements());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = set_value(c, spec, i);
      model.set(t, values);
    }
    for (const auto& tensor : model.tensors()) now.weights.push_back(parameter_bytes(tensor));
    run_program(c, model, step);
    for (const auto& tensor : model.tensors()) {
      now.reduced.push_back(tensor.trainable && model.unit(tensor.unit).reduced);
      now.gradients.push_back(tensor.reduced);
    }
    now.result = model.step(rate_of(c, step));
    now.updates = model.steps();
    expected.steps.push_back(std::move(now));
  }
  for (const auto& tensor : model.tensors()) expected.weights.push_back(parameter_bytes(tensor));
  expected.tensors = model.tensors();
  return expected;
}

}  // namespace property
