// A few bytes of each rank for all of them, on the host.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tessera/cuda/error.hpp"
#include "tessera/nccl/state.hpp"

namespace tessera::detail {

/// A stream and memory of the device that serve a call and end with it.
class PassingWork {
 public:
  explicit PassingWork(std::size_t bytes) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    if (bytes > 0) check_cuda(cudaMalloc(&memory_, bytes), "allocating a buffer for a message");
  }
  ~PassingWork() {
    (void)cudaFree(memory_);
    (void)cudaStreamDestroy(stream_);
  }
  PassingWork(const PassingWork&) = delete;
  PassingWork& operator=(const PassingWork&) = delete;
  cudaStream_t stream() const { return stream_; }
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

 private:
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

/// Waits for a stream of NCCL's work under the group's time-out, which aborts it.
template <class Fail>
void await_stream(NcclState& state, cudaStream_t stream, Fail&& throw_problem) {
  const auto deadline = NcclState::Clock::now() + state.options.timeout;
  for (;;) {
    const cudaError_t done = cudaStreamQuery(stream);
    if (done == cudaSuccess) return;
    if (done != cudaErrorNotReady) check_cuda(done, "waiting for NCCL");
    (void)cudaGetLastError();
    if (state.family->aborted()) throw_problem(state.family->reason());
    if (NcclState::Clock::now() >= deadline) {
      const std::string problem = concat("it did not end within ", state.options.timeout.count(),
                                         " ms: another rank does not take part");
      state.family->abort(concat("rank ", state.rank, ": ", problem));
      throw_problem(problem);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

/// Every rank's value, in rank order. Collective, blocking.
template <class T>
std::vector<T> gather_values(NcclState& state, const T& mine, const char* what) {
  const auto throw_problem = [&](std::string_view problem) {
    throw CommunicatorError(state.rank, "", what, problem);
  };
  const auto size = static_cast<std::size_t>(state.size);
  std::vector<T> all(size);
  const PassingWork work(size * sizeof(T));
  std::byte* const own = work.memory() + sizeof(T) * static_cast<std::size_t>(state.rank);
  check_cuda(cudaMemcpyAsync(own, &mine, sizeof(T), cudaMemcpyHostToDevice, work.stream()), what);
  {
    NcclState::Lock lock(state.mutex);
    if (!state.comm) throw_problem(state.family->reason());
    const ncclResult_t result =
        ncclAllGather(own, work.memory(), sizeof(T), ncclUint8, state.comm, work.stream());
    state.finish(lock, result, "ncclAllGather", throw_problem);
  }
  await_stream(state, work.stream(), throw_problem);
  check_cuda(cudaMemcpyAsync(all.data(), work.memory(), size * sizeof(T), cudaMemcpyDeviceToHost,
                             work.stream()),
             what);
  check_cuda(cudaStreamSynchronize(work.stream()), what);
  return all;
}

/// See Nccl::exchange. It has a stream ahead of compute, and memory, of its own: nothing else on
/// the device waits for it.
class NumberExchange {
 public:
  explicit NumberExchange(int size) : size_(static_cast<std::size_t>(size)) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
               "making a stream");
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, size_ * sizeof(double)), "allocating a buffer for numbers");
    device_ = static_cast<double*>(memory);
    check_cuda(cudaHostAlloc(&memory, (size_ + 1) * sizeof(double), cudaHostAllocPortable),
               "allocating pinned memory for numbers");
    host_ = static_cast<double*>(memory);
  }
  ~NumberExchange() {
    (void)cudaFree(device_);
    (void)cudaFreeHost(host_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  NumberExchange(const NumberExchange&) = delete;
  NumberExchange& operator=(const NumberExchange&) = delete;

  std::vector<double> run(NcclState& state, double mine) {
    const auto throw_problem = [&](std::string_view problem) {
      throw CommunicatorError(state.rank, "", "exchanging numbers", problem);
    };
    double* const own = device_ + state.rank;
    host_[size_] = mine;
    const auto bytes = size_ * sizeof(double);
    check_cuda(cudaMemcpyAsync(own, host_ + size_, sizeof mine, cudaMemcpyHostToDevice, stream_),
               "exchanging numbers");
    {
      NcclState::Lock lock(state.mutex);
      if (!state.comm) throw_problem(state.family->reason());
      const ncclResult_t result = ncclAllGather(own, device_, 1, ncclFloat64, state.comm, stream_);
      state.finish(lock, result, "ncclAllGather", throw_problem);
    }
    check_cuda(cudaMemcpyAsync(host_, device_, bytes, cudaMemcpyDeviceToHost, stream_),
               "exchanging numbers");
    await_stream(state, stream_, throw_problem);
    return {host_, host_ + size_};
  }

 private:
  std::size_t size_;
  cudaStream_t stream_ = nullptr;
  double* device_ = nullptr;
  double* host_ = nullptr;
};

/// Each rank's number, in rank order.
inline std::vector<double> exchange_numbers(NcclState& state, double mine) {
  if (!state.uses_nccl()) return {mine};
  if (!state.numbers) state.numbers = std::make_shared<NumberExchange>(state.size);
  return state.numbers->run(state, mine);
}

}  // namespace tessera::detail
