// What the GPU benchmarks share: a list of named benchmarks, timing, and results as JSON.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tessera/cuda.hpp>

namespace bench {

namespace ts = tessera;

struct Measurement {
  std::string benchmark;
  std::string what;
  double value = 0;
  std::string unit;
};

class Results {
 public:
  void add(const std::string& benchmark, const std::string& what, double value,
           const std::string& unit) {
    all_.push_back({benchmark, what, value, unit});
    std::printf("%-52s %-28s %12.3f %s\n", benchmark.c_str(), what.c_str(), value, unit.c_str());
    std::fflush(stdout);
  }
  /// False when the file cannot be written.
  bool write_json(const std::string& path, const std::string& device) const;

 private:
  std::vector<Measurement> all_;
};

struct Benchmark {
  std::string name;
  std::function<void(Results&)> run;
};

/// Each adds what it has to the list.
void add_primitives(std::vector<Benchmark>& list);
void add_steps(std::vector<Benchmark>& list);

/// Device memory for as long as it lives; zero at first.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count) {
    ts::detail::check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)),
                           "a benchmark's memory");
    ts::detail::check_cuda(cudaMemset(data_, 0, count * sizeof(T)), "a benchmark's memory");
  }
  ~Array() { (void)cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

/// Milliseconds of one call on the stream: the median of `batches` runs of `calls` calls each,
/// after a warm-up.
template <class Call>
double milliseconds(cudaStream_t stream, Call&& call, int calls = 20, int batches = 7) {
  cudaEvent_t from = nullptr;
  cudaEvent_t to = nullptr;
  ts::detail::check_cuda(cudaEventCreate(&from), "a benchmark's event");
  ts::detail::check_cuda(cudaEventCreate(&to), "a benchmark's event");
  for (int i = 0; i < 5; ++i) call();
  std::vector<double> times;
  for (int batch = 0; batch < batches; ++batch) {
    ts::detail::check_cuda(cudaEventRecord(from, stream), "a benchmark's event");
    for (int i = 0; i < calls; ++i) call();
    ts::detail::check_cuda(cudaEventRecord(to, stream), "a benchmark's event");
    ts::detail::check_cuda(cudaEventSynchronize(to), "a benchmark");
    float ms = 0;
    ts::detail::check_cuda(cudaEventElapsedTime(&ms, from, to), "a benchmark's event");
    times.push_back(static_cast<double>(ms) / calls);
  }
  (void)cudaEventDestroy(from);
  (void)cudaEventDestroy(to);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace bench
