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
#include "documents.hpp"
#include "input_error.hpp"
#include "kernels.hpp"

namespace llama {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<std::int64_t, void*>;

enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStatistics,
  kDo,
  kDq,
  kDk,
  kDv,
  // With documents only:
  kQOffsets,
  kKOffsets,
  kVOffsets,
  kOOffsets,
  kStatisticsOffsets,
  kQLengths,
  kKvLengths,
};

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

/// Documents as cuDNN takes them: the batch is theirs instead of the sequences', its tensors have
/// offsets in elements instead of strides between its entries, and each has its length.
struct DocumentBounds {
  std::int32_t* starts = nullptr;   ///< [documents + 1], in rows
  std::int32_t* lengths = nullptr;  ///< [documents]
  std::int64_t* qkv = nullptr;      ///< [documents + 1], as are these
  std::int64_t* out = nullptr;
  std::int64_t* statistics = nullptr;

  static DocumentBounds carve(DeviceArena& arena, std::size_t documents) {
    DocumentBounds bounds;
    bounds.starts = arena.take<std::int32_t>(documents + 1);
    bounds.lengths = arena.take<std::int32_t>(documents);
    bounds.qkv = arena.take<std::int64_t>(documents + 1);
    bounds.out = arena.take<std::int64_t>(documents + 1);
    bounds.statistics = arena.take<std::int64_t>(documents + 1);
    return bounds;
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
  DeviceArena arena;
  DocumentBounds bounds;

  Graphs(cudaStream_t on, const AttentionShape& of, bool fixed)
      : stream(on), shape(of), deterministic(fixed) {
    require(cudnnSetStream(handle, stream), "choosing the stream");
    // Its release notes (9.18) have no backward of a single key, and advise against a causal mask
    // over a single query.
    if (shape.sequence < 2)
      throw std::invalid_argument("cuDNN's attention is for 2 tokens or more");
    if (documents()) {
      make_for_documents();
    } else {
      make_forward();
      make_backward();
    }
  }
  bool documents() const { return shape.documents > 0; }
  std::size_t batch() const { return documents() ? shape.documents : shape.batch; }

  void make_for_documents() {
    // Before 9.6 its backward takes no grouped queries here, and memory as if every document were
    // as long as a sequence.
    if (cudnnGetVersion() < 90600) {
      throw InputError("attention within documents needs cuDNN 9.6 or later, and this is " +
                       std::to_string(cudnnGetVersion()) +
                       ": use --precision fp32, or no --documents.");
    }
    try {
      make_forward();
      make_backward();
    } catch (const std::runtime_error& error) {
      throw InputError(std::string(error.what()) +
                       ": it cannot keep attention within documents here; use --precision fp32, or "
                       "no --documents.");
    }
    require_room();
    DeviceArena counted;
    DocumentBounds::carve(counted, shape.documents);
    arena = DeviceArena(counted.most_used());
    bounds = DocumentBounds::carve(arena, shape.documents);
    set_documents(whole_sequences(shape.batch, shape.sequence, shape.documents).data());
  }
  // In a fixed order cuDNN adds up in a square of a sequence for each document and head.
  void require_room() const {
    std::size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total), "asking for free memory");
    const std::size_t needed = backward.workspace();
    if (!deterministic || needed <= total) return;
    char message[200];
    std::snprintf(message, sizeof message,
                  "attention's deterministic backward takes %.0f GiB for up to %zu documents of "
                  "sequences of %zu: use a smaller --seq, no --documents, or no --deterministic.",
                  static_cast<double>(needed) / 0x1p30, shape.documents, shape.sequence);
    throw InputError(message);
  }
  void set_documents(const std::int32_t* starts) const {
    require(cudaMemcpyAsync(bounds.starts, starts, (shape.documents + 1) * sizeof(std::int32_t),
                            cudaMemcpyHostToDevice, stream),
            "uploading documents");
    document_bounds(stream, shape.documents, bounds.starts, {bounds.qkv, number(shape.stride())},
                    {bounds.out, number(shape.heads * shape.head_dim)},
                    {bounds.statistics, number(shape.heads)}, bounds.lengths);
  }

  std::int64_t number(std::size_t value) const { return static_cast<std::int64_t>(value); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

  // [batch, heads, sequence, head_dim] of rows that are `stride` apart.
  Tensor tensor(fe::graph::Graph& graph, const char* name, Uid uid, std::size_t heads,
                std::size_t stride, const Tensor& offsets) const {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(uid)
                            .set_dim(dims(heads))
                            .set_stride(strides(stride))
                            .set_ragged_offset(offsets));
  }
  // Null where sequences are not divided.
  Tensor per_document(fe::graph::Graph& graph, const char* name, Uid uid, std::size_t count,
                      fe::DataType_t type) const {
    if (!documents()) return nullptr;
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(uid)
                            .set_dim({number(count), 1, 1, 1})
                            .set_stride({1, 1, 1, 1})
                            .set_data_type(type));
  }
  Tensor offsets(fe::graph::Graph& graph, const char* name, Uid uid) const {
    return per_document(graph, name, uid, batch() + 1, fe::DataType_t::INT64);
  }
  Tensor lengths(fe::graph::Graph& graph, const char* name, Uid uid) const {
    return per_document(graph, name, uid, batch(), fe::DataType_t::INT32);
  }
  // What both directions take.
  struct Inputs {
    Tensor q_offsets, k_offsets, v_offsets, out_offsets, statistics_offsets, q_lengths, kv_lengths,
        q, k, v;
  };
  Inputs inputs(fe::graph::Graph& graph) const {
    Inputs in;
    in.q_offsets = offsets(graph, "q_offsets", kQOffsets);
    in.k_offsets = offsets(graph, "k_offsets", kKOffsets);
    in.v_offsets = offsets(graph, "v_offsets", kVOffsets);
    in.out_offsets = offsets(graph, "out_offsets", kOOffsets);
    in.statistics_offsets = offsets(graph, "statistics_offsets", kStatisticsOffsets);
    in.q_lengths = lengths(graph, "q_lengths", kQLengths);
    in.kv_lengths = lengths(graph, "kv_lengths", kKvLengths);
    const std::size_t packed = shape.stride();
    in.q = tensor(graph, "q", kQ, shape.heads, packed, in.q_offsets);
    in.k = tensor(graph, "k", kK, shape.kv_heads, packed, in.k_offsets);
    in.v = tensor(graph, "v", kV, shape.kv_heads, packed, in.v_offsets);
    return in;
  }
  std::vector<std::int64_t> dims(std::size_t heads) const {
    return {number(batch()), number(heads), number(shape.sequence), number(shape.head_dim)};
  }
  std::vector<std::int64_t> strides(std::size_t stride) const {
    return {number(shape.sequence * stride), number(shape.head_dim), number(stride), 1};
  }
  void set_output(const Tensor& tensor, Uid uid, std::size_t heads, std::size_t stride,
                  const Tensor& offsets) const {
    tensor->set_output(true)
        .set_uid(uid)
        .set_dim(dims(heads))
        .set_stride(strides(stride))
        .set_ragged_offset(offsets);
  }
  // A row's lie side by side where documents begin at any row: backward's workspace is laid out so.
  void describe_statistics(fe::graph::Tensor_attributes& tensor, const Tensor& offsets) const {
    const std::int64_t heads = number(shape.heads), sequence = number(shape.sequence);
    tensor.set_uid(kStatistics)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({number(batch()), heads, sequence, 1})
        .set_stride({heads * sequence, documents() ? 1 : sequence, documents() ? heads : 1, 1})
        .set_ragged_offset(offsets);
  }

  void make_forward() {
    auto& graph = forward.graph;
    const Inputs in = inputs(graph);
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_attn_scale(scale())
                       .set_causal_mask(true);
    if (documents()) {
      options.set_padding_mask(true).set_seq_len_q(in.q_lengths).set_seq_len_kv(in.kv_lengths);
    }
    const auto [out, statistics] = graph.sdpa(in.q, in.k, in.v, options);
    set_output(out, kO, shape.heads, shape.heads * shape.head_dim, in.out_offsets);
    statistics->set_output(true);
    describe_statistics(*statistics, in.statistics_offsets);
    forward.build(handle, "attention");
  }

  void make_backward() {
    auto& graph = backward.graph;
    const std::size_t packed = shape.stride();
    const std::size_t own = shape.heads * shape.head_dim;
    const Inputs in = inputs(graph);
    const Tensor out = tensor(graph, "out", kO, shape.heads, own, in.out_offsets);
    const Tensor gradient = tensor(graph, "out_gradient", kDo, shape.heads, own, in.out_offsets);
    fe::graph::Tensor_attributes described;
    described.set_name("statistics");
    describe_statistics(described, in.statistics_offsets);
    const Tensor statistics = graph.tensor(described);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_attn_scale(scale())
                       .set_causal_mask(true)
                       .set_deterministic_algorithm(deterministic);
    if (documents()) {
      // The workspace is for the rows that there are, not for documents as long as sequences.
      options.set_padding_mask(true)
          .set_seq_len_q(in.q_lengths)
          .set_seq_len_kv(in.kv_lengths)
          .set_max_total_seq_len_q(number(shape.rows()))
          .set_max_total_seq_len_kv(number(shape.rows()));
    }
    const auto [dq, dk, dv] =
        graph.sdpa_backward(in.q, in.k, in.v, out, gradient, statistics, options);
    set_output(dq, kDq, shape.heads, packed, in.q_offsets);
    set_output(dk, kDk, shape.kv_heads, packed, in.k_offsets);
    set_output(dv, kDv, shape.kv_heads, packed, in.v_offsets);
    backward.build(handle,
                   deterministic ? "deterministic attention backward" : "attention backward");
  }

  void set_parts(Pointers& pointers, Uid q, Uid k, Uid v, const Element* packed) const {
    auto* const data = const_cast<Element*>(packed);
    pointers[q] = data;
    pointers[k] = data + shape.heads * shape.head_dim;
    pointers[v] = data + (shape.heads + shape.kv_heads) * shape.head_dim;
  }
  void set_bounds(Pointers& pointers) const {
    if (!documents()) return;
    for (const Uid uid : {kQOffsets, kKOffsets, kVOffsets}) pointers[uid] = bounds.qkv;
    pointers[kOOffsets] = bounds.out;
    pointers[kStatisticsOffsets] = bounds.statistics;
    for (const Uid uid : {kQLengths, kKvLengths}) pointers[uid] = bounds.lengths;
  }
  Pointers forward_pointers(const Element* qkv, Element* out, float* statistics) const {
    Pointers pointers{{kO, out}, {kStatistics, statistics}};
    set_parts(pointers, kQ, kK, kV, qkv);
    set_bounds(pointers);
    return pointers;
  }
  Pointers backward_pointers(const Element* qkv, const Element* out, const float* statistics,
                             const Element* out_gradient, Element* qkv_gradient) const {
    Pointers pointers{{kO, const_cast<Element*>(out)},
                      {kStatistics, const_cast<float*>(statistics)},
                      {kDo, const_cast<Element*>(out_gradient)}};
    set_parts(pointers, kQ, kK, kV, qkv);
    set_parts(pointers, kDq, kDk, kDv, qkv_gradient);
    set_bounds(pointers);
    return pointers;
  }
};

FusedAttention::FusedAttention(cudaStream_t stream, const AttentionShape& shape, bool deterministic)
    : graphs_(std::make_unique<Graphs>(stream, shape, deterministic)) {}
FusedAttention::~FusedAttention() = default;

void FusedAttention::set_documents(const std::int32_t* starts) { graphs_->set_documents(starts); }

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
  char text[200];
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
  if (g.documents()) return text + (", up to " + std::to_string(g.shape.documents) + " documents");
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
