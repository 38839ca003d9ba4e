// A whole training step as one CUDA graph: gathers, the trainer's kernels, reductions, norm and
// optimizer, launched by one call.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "tessera/cuda/error.hpp"
#include "tessera/cuda/runtime.hpp"
#include "tessera/engine/core.hpp"
#include "tessera/shard.hpp"

namespace tessera {

/// A captured step of a Shard on CUDA. Made from the function that runs the step:
///
///     for (int i = 0; i < 2; ++i) train_step();      // as it is: kernels are loaded, orders known
///     StepGraph graph(model, train_step);            // recorded, not run
///     for (;;) { model.set_learning_rate(rate); auto ticket = graph.replay(); }
///
/// The function leases its units, enqueues its kernels on the compute stream
/// (CudaOptions::compute), and ends with step(). It must enqueue the same every time: it may not
/// allocate, synchronise or read from the device. Learning rate, norm, clip factor and the decision
/// to skip a step stay on the device, so every replay takes its own. What the function computes on
/// the host, such as which batch, is that of the capture: batches go through buffers that are
/// filled between replays. A replay's report has no times of single collectives and waits, unless
/// Options::trace asks for them: each would be a node of the graph.
///
/// Collectives must be capturable: NCCL's are, those of several in-process ranks are not. The graph
/// ends before its Shard, and the Shard before its communicator. A captured graph stays valid while
/// steps are also run as they are, in the same order of leases.
template <class Model>
class StepGraph {
 public:
  using Backend = typename Model::Backend;

  /// Records `step`. Throws what it throws, and Error when what it enqueues cannot be recorded or
  /// is not one step in the expected order; the Shard is then as after its last step.
  template <class Step>
  StepGraph(Model& model, Step&& step) : model_(&model) {
    auto& core = model.core();
    CudaRuntime& runtime = core.context().backend;
    core.begin_capture();
    try {
      runtime.begin_capture();
      std::forward<Step>(step)();
      const std::unique_ptr<CUgraph_st, DestroyGraph> graph(runtime.end_capture());
      captured_ = core.capture().end();
      cudaGraphExec_t executable = nullptr;
      // Nodes keep the priorities of the streams they were recorded on.
      detail::check_cuda(cudaGraphInstantiateWithFlags(&executable, graph.get(),
                                                       cudaGraphInstantiateFlagUseNodePriority),
                         "making a graph executable");
      executable_.reset(executable);
      detail::check_cuda(cudaGraphUpload(executable, runtime.stream(StreamKind::compute).handle),
                         "uploading a graph");
    } catch (...) {
      // Ended first: destructors on the way out may synchronise, which a capture does not survive.
      runtime.cancel_capture();
      core.capture().cancel();
      throw;
    }
  }

  /// Runs the step once more, with the Shard's learning rate of now. See Shard::step().
  StepTicket<Backend> replay() {
    auto& core = model_->core();
    auto report = core.replay(captured_, [&] { core.context().backend.launch(executable_.get()); });
    return StepTicket<Backend>(core, std::move(report));
  }

 private:
  struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
  };
  struct DestroyExecutable {
    void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
  };

  Model* model_;
  engine::CapturedStep<CudaRuntime> captured_;
  std::unique_ptr<CUgraphExec_st, DestroyExecutable> executable_;
};

template <class Model, class Step>
StepGraph(Model&, Step&&) -> StepGraph<Model>;

}  // namespace tessera
