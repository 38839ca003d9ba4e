// AdamW on the host: a loop over fp32 states on all threads, bf16 parameters out. With the host
// compiler's -fno-math-errno the loop is vectorized; without it, it goes one by one.
#include <omp.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>

#include "groups.hpp"
#include "host_clock.hpp"

namespace limits {
namespace {

constexpr std::size_t count = std::size_t{256} << 20;
constexpr int runs = 7;
// Parameter, two moments and gradient in; parameter and moments out; bf16 out.
constexpr double bytes_each = 4 * 4 + 3 * 4 + 2;
#ifdef __NO_MATH_ERRNO__
constexpr const char* loop = "vectorized";
#else
constexpr const char* loop = "not vectorized: built without -fno-math-errno";
#endif

struct State {
  float *parameter, *first, *second;
  const float* gradient;
  std::uint16_t* bf16;
};

void update(const State& s, float correction1, float correction2) {
  constexpr float beta1 = 0.9f, beta2 = 0.95f, rate = 3e-4f, decay = 0.1f, epsilon = 1e-8f;
  float* const p = s.parameter;
  float* const m = s.first;
  float* const v = s.second;
  const float* const g = s.gradient;
  std::uint16_t* const out = s.bf16;
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    const float step = m[i] * correction1 / (std::sqrt(v[i] * correction2) + epsilon);
    p[i] -= rate * (step + decay * p[i]);
    const auto bits = std::bit_cast<std::uint32_t>(p[i]);
    out[i] = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

}  // namespace

void measure_adamw(Report& report) {
  // Not initialized here: each page belongs to the thread that works on it.
  const auto parameter = std::make_unique_for_overwrite<float[]>(count);
  const auto first = std::make_unique_for_overwrite<float[]>(count);
  const auto second = std::make_unique_for_overwrite<float[]>(count);
  const auto gradient = std::make_unique_for_overwrite<float[]>(count);
  const auto bf16 = std::make_unique_for_overwrite<std::uint16_t[]>(count);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < count; ++i) {
    parameter[i] = 0.1f;
    first[i] = second[i] = 0;
    gradient[i] = static_cast<float>(i % 1024) * 1e-4f;
    bf16[i] = 0;
  }
  const State state{parameter.get(), first.get(), second.get(), gradient.get(), bf16.get()};
  std::vector<double> seconds;
  for (int run = 1; run <= runs + 1; ++run) {
    const auto power = static_cast<float>(run);
    const double begin = seconds_now();
    update(state, 1 / (1 - std::pow(0.9f, power)), 1 / (1 - std::pow(0.95f, power)));
    if (run > 1) seconds.push_back(seconds_now() - begin);
  }
  const double each = median(seconds) / static_cast<double>(count);
  const std::string detail =
      text("%d threads, 256 Mi parameters, median of %d, %s", omp_get_max_threads(), runs, loop);
  report.add("cpu_adamw_parameters", 1e-9 / each, "G/s", detail);
  report.add("cpu_adamw_bandwidth", bytes_each * 1e-9 / each, "GB/s", detail + ", 30 bytes each");
}

}  // namespace limits
