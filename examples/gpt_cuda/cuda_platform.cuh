// The trainer's platform on GPUs: ranks that are threads, one device each. See
// gpt/host_platform.hpp.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>
#include <tessera/cuda.hpp>
#include <tessera/tessera.hpp>

#include "../gpt/config.hpp"
#include "../gpt/input_error.hpp"
#include "../gpt/loss_sum.hpp"
#include "cuda_transformer.cuh"

namespace gpt {

struct CudaPlatform {
  using Backend = tessera::Cuda;
  using Ranks = tessera::CudaInProcess;
  template <class P>
  using Transformer = CudaTransformer<P>;

  /// A rank computes all of each layer: options with a tensor axis are refused (Machine).
  struct Axis {
    Axis(const tessera::Mesh<Backend>&, const Config&, std::size_t, bool) {}
  };

  template <class Body>
  static void run_ranks(int size, Body&& body) {
    int devices = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess) {
      throw InputError(std::string("there is no GPU to train on: ") + cudaGetErrorString(status));
    }
    tessera::run_cuda_ranks(size, std::forward<Body>(body));
  }

  /// Leases order their memory with this stream, and the model computes on it: one for each rank,
  /// since each rank is a thread.
  static cudaStream_t stream() { return cudaStreamPerThread; }

  static tessera::Mesh<Backend> mesh(Ranks& ranks, const tessera::MeshShape& shape) {
    tessera::CudaOptions options;
    options.compute = stream();
    return tessera::Mesh<Backend>(ranks, shape, options);
  }

  template <class P>
  static Transformer<P> transformer(const Config& config, std::size_t sequences, bool recompute,
                                    Axis&) {
    return Transformer<P>(config, sequences, recompute, stream());
  }

  /// Sums over the ranks, on every rank, in the order of the ranks. Counts are exact as doubles.
  class RankSums {
   public:
    explicit RankSums(Ranks& ranks) : channel_(ranks.channel()) {}

    LossSum operator()(LossSum mine) {
      LossSum sum;
      for (const double each : channel_.exchange(mine.sum)) sum.sum += each;
      for (const double each : channel_.exchange(static_cast<double>(mine.count))) {
        sum.count += static_cast<std::size_t>(each);
      }
      return sum;
    }

   private:
    Ranks channel_;
  };
};

}  // namespace gpt
