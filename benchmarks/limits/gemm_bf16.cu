// The rate of bf16 matrix products at the shapes of Llama-3 models, sustained: after a soak, when
// clocks have come down to what the power limit allows.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "groups.hpp"
#include "matmul.hpp"
#include "random_fill.hpp"

namespace limits {
namespace {

constexpr double soak_seconds = 2;
constexpr double shape_seconds = 0.2;
constexpr double model_seconds = 1;
constexpr long vocabulary = 128256;

struct Model {
  const char* name;
  long layers, hidden, heads, kv_heads, head_size, ffn, tokens;
};

/// A linear layer: its forward product and both of its gradients, in this order.
struct Linear {
  const char* name;
  std::vector<Matmul> products;
};

/// Row-major tensors, as trainers keep them: x is tokens x in, the weight is out x in.
Linear linear(const BlasLt& lt, const char* name, long tokens, long in, long out,
              const DeviceMemory& x, const DeviceMemory& weight, const DeviceMemory& dy,
              const DeviceMemory& result) {
  Linear made{name, {}};
  made.products.reserve(3);
  const auto add = [&](const MatmulShape& shape, const DeviceMemory& a, const DeviceMemory& b) {
    made.products.emplace_back(lt, shape, Inputs::bf16,
                               MatmulMemory{a.data(), b.data(), result.data()});
  };
  add({out, tokens, in, true, false}, weight, x);    // y = x weight^T
  add({in, tokens, out, false, false}, weight, dy);  // dx = dy weight
  add({in, out, tokens, false, true}, x, dy);        // dweight = dy^T x
  return made;
}

constexpr const char* pass_names[] = {"forward", "input_gradient", "weight_gradient"};

/// The products of one training step, in its order.
void run_step(const std::vector<Linear>& layer, const Linear& head, long layers,
              cudaStream_t stream) {
  for (long l = 0; l < layers; ++l) {
    for (const Linear& part : layer) part.products[0].run(stream);
  }
  for (const Matmul& product : head.products) product.run(stream);
  for (long l = 0; l < layers; ++l) {
    for (auto part = layer.rbegin(); part != layer.rend(); ++part) {
      part->products[1].run(stream);
      part->products[2].run(stream);
    }
  }
}

/// FLOPs and milliseconds, to weigh rates by.
struct Total {
  double flops = 0, ms = 0;

  double rate() const { return flops / ms / 1e9; }
  Total& operator+=(const Total& other) {
    flops += other.flops;
    ms += other.ms;
    return *this;
  }
};

/// Measures the three products of one linear layer.
Total measure_linear(const Linear& part, const std::string& prefix, cudaStream_t stream,
                     Report& report) {
  Total sum;
  for (std::size_t i = 0; i < part.products.size(); ++i) {
    const Matmul& product = part.products[i];
    const MatmulShape& shape = product.shape();
    const double rate = sustained_rate(product, shape_seconds, stream);
    const double ms = shape.flops() / rate / 1e9;
    report.add(prefix + "_" + part.name + "_" + pass_names[i], rate, "TFLOP/s",
               text("m %ld n %ld k %ld %c%c, %.3f ms, %s", shape.m, shape.n, shape.k,
                    shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', ms,
                    product.choice().c_str()));
    sum += {shape.flops(), ms};
  }
  return sum;
}

void measure_model(const Model& model, Report& report) {
  const long attention = model.heads * model.head_size;
  const long qkv = attention + 2 * model.kv_heads * model.head_size;
  const long widest = std::max({model.hidden, attention, model.ffn});
  const auto memory = [](long rows, long columns) {
    return std::make_unique<DeviceMemory>(static_cast<std::size_t>(rows) * columns *
                                          sizeof(__nv_bfloat16));
  };
  const auto x = memory(model.tokens, widest);
  const auto weight = memory(vocabulary, model.hidden);
  const auto dy = memory(model.tokens, vocabulary);
  const auto result = memory(std::max(model.tokens, model.hidden), vocabulary);

  const Stream stream;
  random_fill<__nv_bfloat16>(*x, 1, stream);
  random_fill<__nv_bfloat16>(*weight, 2, stream);
  random_fill<__nv_bfloat16>(*dy, 3, stream);

  const BlasLt lt;
  const auto make = [&](const char* name, long in, long out) {
    return linear(lt, name, model.tokens, in, out, *x, *weight, *dy, *result);
  };
  std::vector<Linear> layer;
  layer.push_back(make("qkv", model.hidden, qkv));
  layer.push_back(make("attention_out", attention, model.hidden));
  layer.push_back(make("gate_up", model.hidden, 2 * model.ffn));
  layer.push_back(make("down", model.ffn, model.hidden));
  Linear head = make("head", model.hidden, vocabulary);

  // A first step warms the device up, so that algorithms are chosen under load.
  run_step(layer, head, model.layers, stream);
  double layer_ms = 0, head_ms = 0;
  for (Linear& part : layer) {
    for (Matmul& product : part.products) {
      product.tune(stream);
      layer_ms += product.estimate();
    }
  }
  for (Matmul& product : head.products) {
    product.tune(stream);
    head_ms += product.estimate();
  }

  const double round_ms = layer_ms + head_ms;
  for (int i = 0; i < static_cast<int>(std::ceil(soak_seconds * 1e3 / round_ms)); ++i) {
    run_step(layer, head, 1, stream);
  }

  const std::string prefix = std::string("gemm_") + model.name;
  Total layer_total;
  for (const Linear& part : layer) {
    layer_total += measure_linear(part, prefix, stream, report);
  }
  Total both = measure_linear(head, prefix, stream, report);
  both += layer_total;
  report.add(prefix + "_layer_and_head", both.rate(), "TFLOP/s",
             text("one layer and the head, weighted by FLOPs, %.2f ms", both.ms));

  const double step_flops = both.flops + layer_total.flops * static_cast<double>(model.layers - 1);
  const double step_ms = head_ms + layer_ms * static_cast<double>(model.layers);
  const int steps = static_cast<int>(std::ceil(model_seconds * 1e3 / step_ms));
  const double measured_ms =
      milliseconds_each(stream, steps, [&] { run_step(layer, head, model.layers, stream); });
  report.add(prefix + "_step", step_flops / measured_ms / 1e9, "TFLOP/s",
             text("products of a training step in its order, %ld layers, %ld tokens, %.1f ms",
                  model.layers, model.tokens, measured_ms));
}

}  // namespace

void measure_gemm_1b(Report& report) {
  measure_model({"1b", 16, 2048, 32, 8, 64, 8192, 4 * 4096}, report);
}
void measure_gemm_3b(Report& report) {
  measure_model({"3b", 28, 3072, 24, 8, 128, 8192, 2 * 4096}, report);
}
void measure_gemm_8b(Report& report) {
  measure_model({"8b", 32, 4096, 32, 8, 128, 14336, 4096}, report);
}

}  // namespace limits
