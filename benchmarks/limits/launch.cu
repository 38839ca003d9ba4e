// What it costs to put work on a stream: kernels, graphs of kernels, events.
#include "device.hpp"
#include "groups.hpp"
#include "host_clock.hpp"

namespace limits {
namespace {

constexpr int batches = 100;

__global__ void nothing() {}

/// Keeps its stream busy for so long.
__global__ void idle_for(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

class Graph {
 public:
  Graph(cudaStream_t stream, int nodes) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; ++i) nothing<<<1, 32, 0, stream>>>();
    check(cudaStreamEndCapture(stream, &graph_));
    check(cudaGraphInstantiate(&executable_, graph_, 0));
    check(cudaGraphUpload(executable_, stream));
    check(cudaStreamSynchronize(stream));
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

void measure_graph(const Stream& stream, int nodes, Report& report) {
  const Graph graph(stream, nodes);
  std::vector<double> host, all;
  for (int i = 0; i < batches + 10; ++i) {
    const double begin = seconds_now();
    graph.launch(stream);
    const double launched = seconds_now();
    stream.wait();
    const double end = seconds_now();
    if (i < 10) continue;
    host.push_back((launched - begin) * 1e9);
    all.push_back((end - begin) * 1e9);
  }
  constexpr int rows = 20;
  const double device = milliseconds_each(stream, rows, [&] { graph.launch(stream); }) * 1e6;

  const std::string name = text("graph_%d", nodes);
  report.add(name + "_host", median(host), "ns", "cudaGraphLaunch, stream empty, median");
  report.add(
      name + "_end_to_end_per_node", median(all) / nodes, "ns",
      text("launch to the end of the wait / nodes, median; %.1f us in all", median(all) / 1e3));
  report.add(name + "_device_per_node", device / nodes, "ns",
             text("%d launches in a row, by events", rows));
}

/// Host nanoseconds of one call of f, in rows of so many: `before` makes each row's stage, and the
/// streams are empty when it is called. Rows are short, so that no queue gets full.
template <class Before, class F>
double host_cost(int row, const Before& before, const F& f) {
  std::vector<double> costs;
  for (int batch = 0; batch < batches + 5; ++batch) {
    before();
    const double begin = seconds_now();
    for (int i = 0; i < row; ++i) f();
    const double end = seconds_now();
    check(cudaDeviceSynchronize());
    if (batch >= 5) costs.push_back((end - begin) / row * 1e9);
  }
  return median(costs);
}

void measure_calls(const Stream& stream, Report& report) {
  const auto no_stage = [] {};
  const auto launch = [&] {
    nothing<<<1, 32, 0, stream>>>();
    check(cudaGetLastError());
  };
  report.add("kernel_launch_host", host_cost(400, no_stage, launch), "ns",
             "empty kernel, rows of 400, median");
  for (int i = 0; i < 100; ++i) launch();
  report.add("kernel_launch_in_a_row", milliseconds_each(stream, 5000, launch) * 1e6, "ns",
             "one of 5000 empty kernels, by events: the slower of host and device");

  const Event event(cudaEventDisableTiming), timed;
  report.add("event_record_host", host_cost(400, no_stage, [&] { event.record(stream); }), "ns",
             "without timing, rows of 400, median");
  report.add("event_record_timed_host", host_cost(400, no_stage, [&] { timed.record(stream); }),
             "ns", "with timing, rows of 400, median");

  const Stream other;
  const auto wait = [&] { check(cudaStreamWaitEvent(other, event)); };
  event.record(stream);
  stream.wait();
  report.add("stream_wait_done_host", host_cost(100, no_stage, wait), "ns",
             "of an event that has happened, rows of 100, median");
  const auto occupy = [&] {
    idle_for<<<1, 1, 0, stream>>>(2'000'000);
    check(cudaGetLastError());
    event.record(stream);
  };
  report.add("stream_wait_pending_host", host_cost(100, occupy, wait), "ns",
             "of an event 2 ms away, rows of 100, median");
}

}  // namespace

void measure_launch(Report& report) {
  const Stream stream;
  nothing<<<1, 32, 0, stream>>>();
  check(cudaGetLastError());
  stream.wait();
  for (const int nodes : {1, 100, 1000}) measure_graph(stream, nodes, report);
  measure_calls(stream, report);
}

}  // namespace limits
