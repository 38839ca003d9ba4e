// The trainer's platform on the host: ranks that are threads, or processes under mpirun; kernels on
// each rank's own thread.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>
#include <tessera/tessera.hpp>

#include "config.hpp"
#include "host_ranks.hpp"
#include "loss_sum.hpp"
#include "tensor_axis.hpp"
#include "transformer.hpp"

namespace gpt {

/// A platform names the backend and its communicator, starts ranks, and makes what computes the
/// model, alone or over the ranks of an axis, and what adds up losses. Trainer and ShardedModel
/// take one as a template argument.
struct HostPlatform {
  using Ranks = HostRanks;
  using Backend = tessera::HostBackend<Ranks>;
  using Axis = TensorAxis<Backend>;
  template <class P>
  using Transformer = gpt::Transformer<P, Axis&>;

  template <class Body>
  static void run_ranks(int size, Body&& body) {
#if defined(GPT_WITH_MPI)
    if (tessera::Mpi::launched()) return body(HostRanks(tessera::Mpi::world()));
#endif
    tessera::run_ranks(size, [&](tessera::InProcess ranks) { body(HostRanks(std::move(ranks))); });
  }

  static tessera::Mesh<Backend> mesh(Ranks& ranks, const tessera::MeshShape& shape) {
    return tessera::Mesh<Backend>(ranks, shape);
  }

  template <class P>
  static Transformer<P> transformer(const Config& config, std::size_t sequences, bool recompute,
                                    Axis& axis) {
    return Transformer<P>(config, sequences, recompute, axis);
  }

  /// Sums over ranks, on every one of them, as a trainer needs them for what it prints.
  class RankSums {
   public:
    explicit RankSums(Ranks& ranks)
        : channel_(ranks.channel()), stream_(tessera::HostStream::Where::caller) {}

    LossSum operator()(LossSum mine) {
      std::vector<LossSum> all(static_cast<std::size_t>(channel_.size()));
      const tessera::GatherSegment segment{&mine, all.data(), sizeof mine, sizeof mine};
      channel_.all_gather(stream_, {tessera::CollectiveKind::scalars, "the loss"}, {&segment, 1});
      LossSum sum;
      for (const LossSum& each : all) sum += each;
      return sum;
    }

   private:
    Ranks channel_;
    tessera::HostStream stream_;
  };
};

}  // namespace gpt
