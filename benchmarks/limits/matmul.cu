#include "matmul.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "report.hpp"

namespace limits {
namespace {

constexpr int proposals = 24;
constexpr std::size_t finalists = 4;
constexpr double final_ms = 20;

void check_blas(cublasStatus_t status,
                const std::source_location& where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(text("cuBLASLt: %s (%s:%u)", cublasLtGetStatusString(status),
                                where.file_name(), static_cast<unsigned>(where.line())));
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value));
}

/// A rows x columns matrix, or its transpose where that is how it is stored.
void set_layout(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, long rows, long columns,
                bool transposed) {
  if (transposed) std::swap(rows, columns);
  check_blas(cublasLtMatrixLayoutInit(&layout, type, static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), rows));
}

}  // namespace

BlasLt::BlasLt() : workspace_(64 << 20) { check_blas(cublasLtCreate(&handle_)); }
BlasLt::~BlasLt() { cublasLtDestroy(handle_); }

Matmul::Matmul(const BlasLt& lt, const MatmulShape& shape, Inputs inputs,
               const MatmulMemory& memory)
    : lt_(lt), shape_(shape), memory_(memory) {
  const cudaDataType type = inputs == Inputs::bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
  set_layout(a_, type, shape.m, shape.k, shape.transpose_a);
  set_layout(b_, type, shape.k, shape.n, shape.transpose_b);
  set_layout(d_, CUDA_R_16BF, shape.m, shape.n, false);
  check_blas(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (inputs != Inputs::bf16) {
    set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, memory.scales);
    set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, memory.scales + 4);
    const std::int8_t fast = inputs == Inputs::fp8_fast_accumulation;
    set(operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
  }

  cublasLtMatmulPreferenceOpaque_t preference;
  check_blas(cublasLtMatmulPreferenceInit(&preference));
  const std::size_t bytes = lt.workspace().bytes();
  check_blas(cublasLtMatmulPreferenceSetAttribute(
      &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  cublasLtMatmulHeuristicResult_t results[proposals];
  int found = 0;
  check_blas(cublasLtMatmulAlgoGetHeuristic(lt.handle(), &operation_, &a_, &b_, &d_, &d_,
                                            &preference, proposals, results, &found));
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms_.push_back({results[i].algo});
  }
  if (algorithms_.empty()) {
    throw std::runtime_error(
        text("cuBLASLt has no algorithm for %ld x %ld x %ld", shape.m, shape.n, shape.k));
  }
}

bool Matmul::try_run(const Algorithm& algorithm, cudaStream_t stream) const {
  const float one = 1, zero = 0;
  return cublasLtMatmul(lt_.handle(), &operation_, &one, memory_.a, &a_, memory_.b, &b_, &zero,
                        memory_.d, &d_, memory_.d, &d_, &algorithm.value, lt_.workspace().data(),
                        lt_.workspace().bytes(), stream) == CUBLAS_STATUS_SUCCESS;
}

void Matmul::run(cudaStream_t stream) const {
  if (!try_run(algorithms_[chosen_], stream)) {
    throw std::runtime_error(text("cuBLASLt cannot run its algorithm for %ld x %ld x %ld", shape_.m,
                                  shape_.n, shape_.k));
  }
}

void Matmul::tune(cudaStream_t stream) {
  // Nothing waits between the algorithms, so the device stays under load.
  const std::size_t count = algorithms_.size();
  std::vector<Event> begin(count), end(count);
  std::vector<char> works(count);
  for (std::size_t i = 0; i < count; ++i) {
    works[i] = try_run(algorithms_[i], stream);
    begin[i].record(stream);
    for (int run = 0; works[i] && run < 2; ++run) works[i] = try_run(algorithms_[i], stream);
    end[i].record(stream);
  }
  std::vector<double> ms(count);
  for (std::size_t i = 0; i < count; ++i) {
    ms[i] = works[i] ? milliseconds(begin[i], end[i]) / 2 : INFINITY;
  }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return ms[x] < ms[y]; });

  estimate_ = INFINITY;
  for (std::size_t i = 0; i < std::min(finalists, count); ++i) {
    const std::size_t candidate = order[i];
    if (!works[candidate]) break;
    const int runs = std::max(3, static_cast<int>(final_ms / ms[candidate]));
    const double each =
        milliseconds_each(stream, runs, [&] { try_run(algorithms_[candidate], stream); });
    if (each < estimate_) {
      estimate_ = each;
      chosen_ = candidate;
    }
  }
  if (!std::isfinite(estimate_)) {
    throw std::runtime_error(text("none of cuBLASLt's algorithms for %ld x %ld x %ld runs",
                                  shape_.m, shape_.n, shape_.k));
  }
}

std::string Matmul::choice() const {
  return text("algorithm %zu of %zu", chosen_ + 1, algorithms_.size());
}

double sustained_rate(const Matmul& matmul, double seconds, cudaStream_t stream) {
  const int runs = std::max(3, static_cast<int>(std::ceil(seconds * 1e3 / matmul.estimate())));
  for (int i = 0; i < (runs + 9) / 10; ++i) matmul.run(stream);
  const double ms = milliseconds_each(stream, runs, [&] { matmul.run(stream); });
  return matmul.shape().flops() / ms / 1e9;
}

}  // namespace limits
