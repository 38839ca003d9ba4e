#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "attention.hpp"
#include "cuda_check.hpp"
#include "kernels.hpp"

namespace llama {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<std::int64_t, void*>;

enum Uid : std::int64_t { kQ = 1, kK, kV, kO, kStatistics, kDo, kDq, kDk, kDv };

void require(fe::error_t error, const char* what) {
  if (error.is_good()) return;
  throw std::runtime_error(std::string("cuDNN: ") + what + ": " + error.get_message());
}
void require(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("cuDNN: ") + what + ": " + cudnnGetErrorString(status));
}
using llama::require;

class Memory {
 public:
  explicit Memory(std::size_t bytes) { require(cudaMalloc(&memory_, bytes), "memory to tune in"); }
  explicit Memory(void* owned) : memory_(owned) {}
  ~Memory() { cudaFree(memory_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
};

/// One direction: a graph of cuDNN's and which of its plans is used.
struct Direction {
  fe::graph::Graph graph;
  std::int64_t plan = -1;  ///< -1: the one that cuDNN's heuristics put first
  double milliseconds = 0;

  Direction() {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  void build(cudnnHandle_t handle, const char* what) {
    require(graph.validate(), what);
    require(graph.build_operation_graph(handle), what);
    require(graph.create_execution_plans({fe::HeurMode_t::A}), what);
    require(graph.check_support(handle), what);
    require(graph.build_plans(handle, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), what);
  }
  std::size_t workspace() const {
    const std::int64_t bytes =
        plan < 0 ? graph.get_workspace_size() : graph.get_workspace_size_plan_at_index(plan);
    return static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0));
  }
  void run(cudnnHandle_t handle, Pointers& pointers, void* workspace, const char* what) {
    require(plan < 0 ? graph.execute(handle, pointers, workspace)
                     : graph.execute_plan_at_index(handle, pointers, workspace, plan),
            what);
  }
  /// Milliseconds a run, or infinity where the plan cannot be built or run.
  double time(cudnnHandle_t handle, cudaStream_t stream, std::int64_t candidate,
              Pointers& pointers) {
    if (graph.build_plan_at_index(handle, candidate).is_bad()) return INFINITY;
    const std::int64_t bytes = graph.get_workspace_size_plan_at_index(candidate);
    if (bytes < 0) return INFINITY;
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<std::size_t>(bytes) + 1) != cudaSuccess) {
      (void)cudaGetLastError();  // there is no room for this plan: another may do
      return INFINITY;
    }
    const Memory workspace(memory);
    const auto run = [&] {
      return graph.execute_plan_at_index(handle, pointers, workspace.as<void>(), candidate)
          .is_good();
    };
    cudaEvent_t begin = nullptr, end = nullptr;
    require(cudaEventCreate(&begin), "an event");
    require(cudaEventCreate(&end), "an event");
    bool works = run();
    require(cudaEventRecord(begin, stream), "an event");
    constexpr int runs = 5;
    for (int i = 0; works && i < runs; ++i) works = run();
    require(cudaEventRecord(end, stream), "an event");
    require(cudaStreamSynchronize(stream), "tuning attention");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin, end), "an event");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return works ? static_cast<double>(ms) / runs : INFINITY;
  }
  void tune(cudnnHandle_t handle, cudaStream_t stream, Pointers& pointers) {
    milliseconds = INFINITY;
    for (std::int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
      const double ms = time(handle, stream, i, pointers);
      if (ms >= milliseconds) continue;
      milliseconds = ms;
      plan = i;
    }
    if (plan < 0) throw std::runtime_error("cuDNN: no plan for attention runs");
  }
};

}  // namespace

struct FusedAttention::Graphs {
  cudaStream_t stream;
  AttentionShape shape;
  bool deterministic;
  struct Handle {
    cudnnHandle_t value = nullptr;
    Handle() { require(cudnnCreate(&value), "starting"); }
    ~Handle() { cudnnDestroy(value); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
  } owner;
  cudnnHandle_t handle = owner.value;
  Direction forward, backward;

  Graphs(cudaStream_t on, const AttentionShape& of, bool fixed)
      : stream(on), shape(of), deterministic(fixed) {
    require(cudnnSetStream(handle, stream), "choosing the stream");
    make_forward();
    make_backward();
  }
  std::int64_t number(std::size_t value) const { return static_cast<std::int64_t>(value); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

  // [batch, heads, sequence, head_dim] of rows that are `stride` apart.
  Tensor tensor(fe::graph::Graph& graph, const char* name, Uid uid, std::size_t heads,
                std::size_t stride) const {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(uid)
                            .set_dim(dims(heads))
                            .set_stride(strides(stride)));
  }
  std::vector<std::int64_t> dims(std::size_t heads) const {
    return {number(shape.batch), number(heads), number(shape.sequence), number(shape.head_dim)};
  }
  std::vector<std::int64_t> strides(std::size_t stride) const {
    return {number(shape.sequence * stride), number(shape.head_dim), number(stride), 1};
  }
  void set_output(const Tensor& tensor, Uid uid, std::size_t heads, std::size_t stride) const {
    tensor->set_output(true).set_uid(uid).set_dim(dims(heads)).set_stride(strides(stride));
  }
  void describe_statistics(fe::graph::Tensor_attributes& tensor) const {
    tensor.set_uid(kStatistics)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({number(shape.batch), number(shape.heads), number(shape.sequence), 1})
        .set_stride({number(shape.heads * shape.sequence), number(shape.sequence), 1, 1});
  }

  void make_forward() {
    auto& graph = forward.graph;
    const std::size_t packed = shape.stride();
    const Tensor q = tensor(graph, "q", kQ, shape.heads, packed);
    const Tensor k = tensor(graph, "k", kK, shape.kv_heads, packed);
    const Tensor v = tensor(graph, "v", kV, shape.kv_heads, packed);
    const auto [out, statistics] = graph.sdpa(q, k, v,
                                              fe::graph::SDPA_attributes()
                                                  .set_name("attention")
                                                  .set_generate_stats(true)
                                                  .set_attn_scale(scale())
                                                  .set_causal_mask(true));
    set_output(out, kO, shape.heads, shape.heads * shape.head_dim);
    statistics->set_output(true);
    describe_statistics(*statistics);
    forward.build(handle, "attention");
  }

  void make_backward() {
    auto& graph = backward.graph;
    const std::size_t packed = shape.stride();
    const std::size_t own = shape.heads * shape.head_dim;
    const Tensor q = tensor(graph, "q", kQ, shape.heads, packed);
    const Tensor k = tensor(graph, "k", kK, shape.kv_heads, packed);
    const Tensor v = tensor(graph, "v", kV, shape.kv_heads, packed);
    const Tensor out = tensor(graph, "out", kO, shape.heads, own);
    const Tensor gradient = tensor(graph, "out_gradient", kDo, shape.heads, own);
    fe::graph::Tensor_attributes described;
    described.set_name("statistics");
    describe_statistics(described);
    const Tensor statistics = graph.tensor(described);
    const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, gradient, statistics,
                                                  fe::graph::SDPA_backward_attributes()
                                                      .set_name("attention_backward")
                                                      .set_attn_scale(scale())
                                                      .set_causal_mask(true)
                                                      .set_deterministic_algorithm(deterministic));
    set_output(dq, kDq, shape.heads, packed);
    set_output(dk, kDk, shape.kv_heads, packed);
    set_output(dv, kDv, shape.kv_heads, packed);
    backward.build(handle,
                   deterministic ? "deterministic attention backward" : "attention backward");
  }

  void set_parts(Pointers& pointers, Uid q, Uid k, Uid v, const Element* packed) const {
    auto* const data = const_cast<Element*>(packed);
    pointers[q] = data;
    pointers[k] = data + shape.heads * shape.head_dim;
    pointers[v] = data + (shape.heads + shape.kv_heads) * shape.head_dim;
  }
  Pointers forward_pointers(const Element* qkv, Element* out, float* statistics) const {
    Pointers pointers{{kO, out}, {kStatistics, statistics}};
    set_parts(pointers, kQ, kK, kV, qkv);
    return pointers;
  }
  Pointers backward_pointers(const Element* qkv, const Element* out, const float* statistics,
                             const Element* out_gradient, Element* qkv_gradient) const {
    Pointers pointers{{kO, const_cast<Element*>(out)},
                      {kStatistics, const_cast<float*>(statistics)},
                      {kDo, const_cast<Element*>(out_gradient)}};
    set_parts(pointers, kQ, kK, kV, qkv);
    set_parts(pointers, kDq, kDk, kDv, qkv_gradient);
    return pointers;
  }
};

FusedAttention::FusedAttention(cudaStream_t stream, const AttentionShape& shape, bool deterministic)
    : graphs_(std::make_unique<Graphs>(stream, shape, deterministic)) {}
FusedAttention::~FusedAttention() = default;

void FusedAttention::tune() {
  Graphs& g = *graphs_;
  const std::size_t packed = g.shape.rows() * g.shape.stride();
  const std::size_t own = g.shape.rows() * g.shape.heads * g.shape.head_dim;
  const Memory qkv(packed * 2), out(own * 2), statistics(g.shape.statistics() * 4),
      out_gradient(own * 2), qkv_gradient(packed * 2);
  fill_normal(g.stream, packed, 1.0f, 1, qkv.as<Element>());
  fill_normal(g.stream, own, 1.0f, 2, out_gradient.as<Element>());
  Pointers pointers =
      g.forward_pointers(qkv.as<Element>(), out.as<Element>(), statistics.as<float>());
  g.forward.tune(g.handle, g.stream, pointers);
  pointers = g.backward_pointers(qkv.as<Element>(), out.as<Element>(), statistics.as<float>(),
                                 out_gradient.as<Element>(), qkv_gradient.as<Element>());
  g.backward.tune(g.handle, g.stream, pointers);
}

std::size_t FusedAttention::workspace_bytes() const {
  return std::max(graphs_->forward.workspace(), graphs_->backward.workspace());
}

std::string FusedAttention::choice() const {
  const Graphs& g = *graphs_;
  char text[160];
  if (g.forward.milliseconds > 0) {
    std::snprintf(
        text, sizeof text,
        "cuDNN %zu, %.0f TFLOP/s forward and backward (%.3f + %.3f ms), workspace %.2f GiB",
        cudnnGetVersion(),
        g.shape.flops() / (g.forward.milliseconds + g.backward.milliseconds) / 1e9,
        g.forward.milliseconds, g.backward.milliseconds,
        static_cast<double>(workspace_bytes()) / 0x1p30);
  } else {
    std::snprintf(text, sizeof text, "cuDNN %zu, its first plan, workspace %.2f GiB",
                  cudnnGetVersion(), static_cast<double>(workspace_bytes()) / 0x1p30);
  }
  return text;
}

void FusedAttention::forward(const Element* qkv, Element* out, float* statistics, void* workspace) {
  Pointers pointers = graphs_->forward_pointers(qkv, out, statistics);
  graphs_->forward.run(graphs_->handle, pointers, workspace, "attention");
}

void FusedAttention::backward(const Element* qkv, const Element* out, const float* statistics,
                              const Element* out_gradient, Element* qkv_gradient, void* workspace) {
  Pointers pointers = graphs_->backward_pointers(qkv, out, statistics, out_gradient, qkv_gradient);
  graphs_->backward.run(graphs_->handle, pointers, workspace, "attention backward");
}

}  // namespace llama
