#include "matmul.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <tessera/exact/bf16.hpp>
#include "cuda_check.hpp"
#include "input_error.hpp"
#include "kernels.hpp"

namespace llama {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;
constexpr std::size_t kFinalists = 5;
const std::string kHeader = "llama's matrix products: cuBLASLt ";

void require(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + ": " + cublasLtGetStatusString(status));
}
using llama::require;

class Event {
 public:
  Event() { require(cudaEventCreate(&handle_), "making an event"); }
  ~Event() { cudaEventDestroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { require(cudaEventRecord(handle_, stream), "an event"); }
  double since(const Event& earlier) const {
    require(cudaEventSynchronize(handle_), "waiting for an event");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, earlier.handle_, handle_), "reading an event");
    return static_cast<double>(ms);
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

class PassingMemory {
 public:
  explicit PassingMemory(std::size_t bytes) {
    require(cudaMalloc(&memory_, bytes), "allocating memory to tune products in");
  }
  ~PassingMemory() { cudaFree(memory_); }
  PassingMemory(const PassingMemory&) = delete;
  PassingMemory& operator=(const PassingMemory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

const char* name_of(Product product) {
  switch (product) {
    case Product::forward: return "forward";
    case Product::forward_add: return "forward_add";
    case Product::input_gradient: return "input_gradient";
    case Product::weight_gradient: return "weight_gradient";
    case Product::weight_add: return "weight_add";
  }
  return "";
}

// cuBLAS stores by columns, so that it sees each of our matrices transposed: the operands change
// places, and w, which our forward product transposes, is what it must.
struct Operands {
  std::size_t m, n, k;  ///< result: n rows of m
  bool transpose_a, transpose_b;
};

Operands operands_of(Product product, const LinearShape& s) {
  switch (product) {
    case Product::forward:
    case Product::forward_add: return {s.out, s.rows, s.in, true, false};
    case Product::input_gradient: return {s.in, s.rows, s.out, false, false};
    case Product::weight_gradient:
    case Product::weight_add: return {s.in, s.out, s.rows, false, true};
  }
  return {};
}

}  // namespace

struct Matmuls::Plan {
  Product product;
  LinearShape shape;
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  std::vector<cublasLtMatmulAlgo_t> candidates;
  std::size_t chosen = 0;
  double milliseconds = 0;
  bool settled = false;

  bool adds() const { return product == Product::forward_add || product == Product::weight_add; }
  double flops() const {
    return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.in) *
           static_cast<double>(shape.out);
  }
  std::string name(MatmulElement element) const {
    char text[128];
    std::snprintf(text, sizeof text, "%s %s %zux%zux%zu",
                  element == MatmulElement::bf16 ? "bf16" : "f32", name_of(product), shape.rows,
                  shape.in, shape.out);
    return text;
  }
};

Matmuls::Matmuls(cudaStream_t stream, MatmulElement element) : stream_(stream), element_(element) {
  require(cublasLtCreate(&handle_), "starting cuBLASLt");
  const cudaError_t status = cudaMalloc(&workspace_, kWorkspace);
  if (status != cudaSuccess) {
    cublasLtDestroy(handle_);
    require(status, "allocating cuBLASLt's workspace");
  }
}

Matmuls::~Matmuls() {
  cudaFree(workspace_);
  cublasLtDestroy(handle_);
}

Matmuls::Plan& Matmuls::plan(Product product, const LinearShape& shape) {
  std::unique_ptr<Plan>& slot = plans_[{product, shape}];
  if (slot) return *slot;
  slot = std::make_unique<Plan>();
  slot->product = product;
  slot->shape = shape;
  const Operands o = operands_of(product, shape);
  const cudaDataType_t type = element_ == MatmulElement::bf16 ? CUDA_R_16BF : CUDA_R_32F;
  require(cublasLtMatmulDescInit(&slot->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  const cublasOperation_t a = o.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t b = o.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  require(
      cublasLtMatmulDescSetAttribute(&slot->operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a),
      "a product");
  require(
      cublasLtMatmulDescSetAttribute(&slot->operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b),
      "a product");
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& of, std::size_t rows, std::size_t columns,
                          bool transposed) {
    if (transposed) std::swap(rows, columns);
    require(cublasLtMatrixLayoutInit(&of, type, rows, columns, static_cast<std::int64_t>(rows)),
            "a matrix");
  };
  layout(slot->a, o.m, o.k, o.transpose_a);
  layout(slot->b, o.k, o.n, o.transpose_b);
  layout(slot->d, o.m, o.n, false);
  return *slot;
}

void Matmuls::propose(Plan& plan, int candidates) {
  cublasLtMatmulPreferenceOpaque_t preference;
  require(cublasLtMatmulPreferenceInit(&preference), "a preference");
  require(
      cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kWorkspace, sizeof kWorkspace),
      "a preference");
  // Tensors of a unit begin at multiples of 64 elements.
  const std::uint32_t alignment = element_ == MatmulElement::bf16 ? 128 : 256;
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    require(
        cublasLtMatmulPreferenceSetAttribute(&preference, operand, &alignment, sizeof alignment),
        "a preference");
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(candidates));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &plan.operation, &plan.a, &plan.b, &plan.d, &plan.d,
                                     &preference, candidates, results.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS) found = 0;
  plan.candidates.clear();
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) plan.candidates.push_back(result.algo);
  }
  if (plan.candidates.empty()) {
    throw std::runtime_error("cuBLASLt has no algorithm for " + plan.name(element_));
  }
}

bool Matmuls::takes(Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle_, &plan.operation, &plan.a, &plan.b, &plan.d, &plan.d,
                                 &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspace;
}

// The heuristics propose a handful for a shape, whatever is asked for. The same kernels with other
// clusters and orders of tiles are candidates too, as far as cuBLASLt takes them.
void Matmuls::vary(Plan& plan, std::size_t most) {
  const auto same = [](const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b) {
    return std::memcmp(a.data, b.data, sizeof a.data) == 0;
  };
  const std::vector<cublasLtMatmulAlgo_t> proposed = plan.candidates;
  constexpr std::uint16_t clusters[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                        CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_2x2x1,
                                        CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x4x1};
  for (const std::uint32_t swizzle : {0u, 1u, 2u}) {
    for (const std::uint16_t cluster : clusters) {
      for (cublasLtMatmulAlgo_t algorithm : proposed) {
        if (plan.candidates.size() >= most) return;
        if (cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                                 &cluster,
                                                 sizeof cluster) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                                                 &swizzle,
                                                 sizeof swizzle) != CUBLAS_STATUS_SUCCESS) {
          continue;
        }
        if (!takes(plan, algorithm)) continue;
        const bool known =
            std::any_of(plan.candidates.begin(), plan.candidates.end(),
                        [&](const cublasLtMatmulAlgo_t& other) { return same(other, algorithm); });
        if (!known) plan.candidates.push_back(algorithm);
      }
    }
  }
}

bool Matmuls::launch(Plan& plan, std::size_t candidate, const void* left, const void* right,
                     void* result, const void* added) {
  const float one = 1.0f;
  const float beta = plan.adds() ? 1.0f : 0.0f;
  // What cuBLAS calls a is the right operand of ours.
  return cublasLtMatmul(handle_, &plan.operation, &one, right, &plan.a, left, &plan.b, &beta,
                        plan.product == Product::forward_add ? added : result, &plan.d, result,
                        &plan.d, &plan.candidates[candidate], workspace_, kWorkspace,
                        stream_) == CUBLAS_STATUS_SUCCESS;
}

void Matmuls::choose_by_time(Plan& plan, const void* left, const void* right, void* result) {
  const std::size_t count = plan.candidates.size();
  std::vector<double> ms(count, INFINITY);
  const auto time = [&](std::size_t candidate, int runs) {
    Event begin, end;
    if (!launch(plan, candidate, left, right, result, left)) return static_cast<double>(INFINITY);
    begin.record(stream_);
    for (int i = 0; i < runs; ++i) launch(plan, candidate, left, right, result, left);
    end.record(stream_);
    return end.since(begin) / runs;
  };
  for (std::size_t i = 0; i < count; ++i) ms[i] = time(i, 2);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return ms[x] < ms[y]; });
  if (!std::isfinite(ms[order[0]])) {
    throw std::runtime_error("no algorithm of cuBLASLt runs for " + plan.name(element_));
  }
  // Those near the best once more, for longer and in turn, so that a change of clock hits all.
  const std::size_t finalists = std::min(kFinalists, count);
  const int runs = std::clamp(static_cast<int>(4.0 / ms[order[0]]), 2, 50);
  std::vector<double> total(finalists, 0.0);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < finalists; ++i) total[i] += time(order[i], runs) / 3;
  }
  const std::size_t best =
      static_cast<std::size_t>(std::min_element(total.begin(), total.end()) - total.begin());
  plan.chosen = order[best];
  plan.milliseconds = total[best];
}

void Matmuls::tune(const std::vector<Wanted>& wanted, const MatmulTuning& tuning) {
  if (!tuning.file.empty()) read(tuning.file);
  std::vector<Plan*> open;
  std::size_t left = 0, right = 0, result = 0;
  for (const Wanted& each : wanted) {
    Plan& p = plan(each.product, each.shape);
    if (p.settled) continue;
    p.settled = true;
    const auto found = remembered_.find(p.name(element_));
    if (found != remembered_.end()) {
      p.candidates.resize(1);
      std::memcpy(p.candidates[0].data, found->second.data(), sizeof p.candidates[0].data);
      if (takes(p, p.candidates[0])) continue;
    }
    propose(p, tuning.measured ? tuning.candidates : 1);
    if (!tuning.measured) continue;
    vary(p, static_cast<std::size_t>(tuning.candidates));
    const LinearShape& s = each.shape;
    const std::size_t x = s.rows * s.in, w = s.in * s.out, y = s.rows * s.out;
    const bool forward = p.product == Product::forward || p.product == Product::forward_add;
    const bool weight = p.product == Product::weight_gradient || p.product == Product::weight_add;
    left = std::max({left, forward ? std::max(x, y) : y});  // forward_add reads z here too
    right = std::max(right, weight ? x : w);
    result = std::max(result, forward ? y : weight ? w : x);
    open.push_back(&p);
  }
  if (!open.empty()) {
    const std::size_t width = element_ == MatmulElement::bf16 ? 2 : 4;
    const PassingMemory a(left * width), b(right * width), c(result * width);
    const auto fill = [&](const PassingMemory& memory, std::size_t count, float deviation,
                          std::uint64_t seed) {
      if (element_ == MatmulElement::bf16) {
        fill_normal(stream_, count, deviation, seed, static_cast<tessera::bf16*>(memory.get()));
      } else {
        fill_normal(stream_, count, deviation, seed, static_cast<float*>(memory.get()));
      }
    };
    fill(a, left, 1.0f, 1);
    fill(b, right, 0.02f, 2);
    fill(c, result, 1.0f, 3);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
           tuning.soak_seconds) {
      for (Plan* p : open) launch(*p, 0, a.get(), b.get(), c.get(), a.get());
      require(cudaStreamSynchronize(stream_), "warming up");
    }
    for (Plan* p : open) choose_by_time(*p, a.get(), b.get(), c.get());
    if (!tuning.file.empty()) write(tuning.file);
  }
}

void Matmuls::run(Product product, const LinearShape& shape, const void* left, const void* right,
                  void* result, const void* added) {
  Plan& p = plan(product, shape);
  if (!p.settled) {
    propose(p, 1);
    p.settled = true;
  }
  if (!launch(p, p.chosen, left, right, result, added)) {
    throw std::runtime_error("cuBLASLt could not run " + p.name(element_));
  }
}

std::vector<std::string> Matmuls::choices() const {
  std::vector<std::string> lines;
  for (const auto& [key, plan] : plans_) {
    char text[96] = "";
    if (plan->milliseconds > 0) {
      std::snprintf(text, sizeof text, ": %.0f TFLOP/s, candidate %zu of %zu",
                    plan->flops() / plan->milliseconds / 1e9, plan->chosen + 1,
                    plan->candidates.size());
    }
    lines.push_back(plan->name(element_) + text);
  }
  return lines;
}

// The first line says what it is and what it is good for: cuBLASLt's version and the card. Then a
// line an algorithm: its opaque numbers and the product's name.
std::string Matmuls::header() const {
  int device = 0;
  cudaDeviceProp properties{};
  require(cudaGetDevice(&device), "looking for the device");
  require(cudaGetDeviceProperties(&properties, device), "the device's name");
  return kHeader + std::to_string(cublasLtGetVersion()) + ' ' + properties.name;
}

void Matmuls::read(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return;
  if (!line.starts_with(kHeader)) {
    throw InputError(file + " is not a file of algorithms: --algorithms would write over it.");
  }
  if (line != header()) return;     // another card's or version's: made anew
  while (std::getline(in, line)) {  // a last one without an end was cut off
    std::istringstream words(line);
    std::array<std::uint64_t, 8> numbers{};
    for (std::uint64_t& number : numbers) words >> std::hex >> number;
    std::string name;
    std::getline(words >> std::ws, name);
    if (words && !in.eof()) remembered_[name] = numbers;
  }
}

// To a file beside it, which then takes its place: nobody ever reads half of it.
void Matmuls::write(const std::string& file) const {
  auto all = remembered_;
  for (const auto& [key, plan] : plans_) {
    static_assert(sizeof(plan->candidates[0].data) == sizeof(std::array<std::uint64_t, 8>));
    std::array<std::uint64_t, 8> numbers{};
    std::memcpy(numbers.data(), plan->candidates[plan->chosen].data, sizeof numbers);
    all[plan->name(element_)] = numbers;
  }
  const std::string beside = file + '.' + std::to_string(::getpid());
  std::ofstream out(beside);
  out << header() << '\n';
  for (const auto& [name, numbers] : all) {
    for (const std::uint64_t number : numbers) out << std::hex << number << ' ';
    out << name << '\n';
  }
  out.close();
  if (!out || std::rename(beside.c_str(), file.c_str()) != 0) {
    throw InputError("cannot write the algorithms to " + file + ".");
  }
}

}  // namespace llama
