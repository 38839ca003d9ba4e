// The rate of e4m3 matrix products with one scale a tensor. cuBLASLt takes fp8 as TN only, so the
// gradients are measured as TN too: a trainer has to transpose for them.
#include <cuda_fp8.h>

#include <algorithm>
#include <iterator>

#include "groups.hpp"
#include "matmul.hpp"
#include "random_fill.hpp"

namespace limits {
namespace {

constexpr double soak_seconds = 1;
constexpr double shape_seconds = 0.2;

struct Case {
  const char* name;
  long m, n, k;
};

// hidden 4096, ffn 14336, 4096 tokens.
constexpr Case cases[] = {
    {"8b_gate_up_forward", 28672, 4096, 4096},
    {"8b_gate_up_input_gradient", 4096, 4096, 28672},
    {"8b_gate_up_weight_gradient", 4096, 28672, 4096},
    {"8b_down_forward", 4096, 4096, 14336},
    {"8b_down_input_gradient", 14336, 4096, 4096},
    {"8b_down_weight_gradient", 14336, 4096, 4096},
    {"8192", 8192, 8192, 8192},
};

void measure(Inputs inputs, const char* prefix, const char* accumulation, Report& report) {
  std::size_t a_bytes = 0, b_bytes = 0, d_bytes = 0;
  for (const Case& c : cases) {
    a_bytes = std::max(a_bytes, static_cast<std::size_t>(c.m) * c.k);
    b_bytes = std::max(b_bytes, static_cast<std::size_t>(c.n) * c.k);
    d_bytes = std::max(d_bytes, static_cast<std::size_t>(c.m) * c.n * 2);
  }
  const DeviceMemory a(a_bytes), b(b_bytes), d(d_bytes), scales(8 * sizeof(float));
  const Stream stream;
  random_fill<__nv_fp8_e4m3>(a, 1, stream);
  random_fill<__nv_fp8_e4m3>(b, 2, stream);
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  check(cudaMemcpyAsync(scales.data(), ones, sizeof ones, cudaMemcpyHostToDevice, stream));

  const BlasLt lt;
  std::vector<Matmul> products;
  products.reserve(std::size(cases));
  for (const Case& c : cases) {
    products.emplace_back(
        lt, MatmulShape{c.m, c.n, c.k, true, false}, inputs,
        MatmulMemory{a.data(), b.data(), d.data(), static_cast<const float*>(scales.data())});
  }
  double round_ms = 0;
  for (Matmul& product : products) {
    product.tune(stream);
    round_ms += product.estimate();
  }
  for (int i = 0; i < static_cast<int>(soak_seconds * 1e3 / round_ms); ++i) {
    for (const Matmul& product : products) product.run(stream);
  }
  for (std::size_t i = 0; i < products.size(); ++i) {
    const MatmulShape& shape = products[i].shape();
    const double rate = sustained_rate(products[i], shape_seconds, stream);
    report.add(std::string(prefix) + "_" + cases[i].name, rate, "TFLOP/s",
               text("m %ld n %ld k %ld, %s, %.3f ms, %s", shape.m, shape.n, shape.k, accumulation,
                    shape.flops() / rate / 1e9, products[i].choice().c_str()));
  }
}

}  // namespace

void measure_fp8(Report& report) {
  measure(Inputs::fp8_fast_accumulation, "fp8_fast", "fast accumulation", report);
  measure(Inputs::fp8, "fp8", "fp32 accumulation", report);
}

}  // namespace limits
