// Runs under mpirun, at any number of ranks: collectives and whole training steps over MPI against
// in-process ranks, which each process runs beside. Every process makes the same calls.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tessera/mpi.hpp>

namespace ts = tessera;

namespace {

ts::Mpi& world() {
  static ts::Mpi ranks = ts::Mpi::world({.timeout = std::chrono::seconds(60)});
  return ranks;
}

using Digests = std::pair<std::uint64_t, std::uint64_t>;

/// Some steps on tensors of uneven sizes, gradients that depend on the rank.
template <class Strategy, class Precision, class Backend>
Digests train(ts::Mesh<Backend> mesh, const ts::Options& options) {
  const int rank = mesh.rank();
  std::vector<std::span<float>> weights;
  for (const std::size_t size : {std::size_t{1000}, std::size_t{1}, std::size_t{70001}}) {
    weights.emplace_back(static_cast<float*>(nullptr), size);
  }
  ts::Shard<Strategy, ts::OnDevice, Precision, Backend> model(
      std::move(mesh), ts::AdamW{.learning_rate = 0.01f}, options);
  std::vector<ts::Unit> units;
  for (std::size_t u = 0; u < weights.size(); ++u) {
    units.push_back(model.add_unit(std::to_string(u), weights[u]));
  }
  model.materialize([](const ts::TensorInfo& t, std::uint64_t i) {
    return static_cast<float>(ts::random_normal(1, t.id, i));
  });
  for (int step = 0; step < 4; ++step) {
    for (const ts::Unit unit : units) auto lease = model.forward(unit);
    for (std::size_t u = units.size(); u-- > 0;) {
      auto lease = model.backward(units[u]);
      const auto gradient = lease.gradient(weights[u]);
      for (std::size_t i = 0; i < weights[u].size(); ++i) {
        gradient.data[i] = weights[u][i] * 0.5f + 0.01f * static_cast<float>(rank + 1);
      }
    }
    model.step();
  }
  return {model.parameters_digest(), model.moments_digest()};
}

template <class Strategy, class Precision>
void check_training(const ts::Options& options) {
  Digests wanted;
  ts::run_ranks(world().size(), [&](ts::InProcess ranks) {
    const Digests digests =
        train<Strategy, Precision>(ts::Mesh<ts::Host>(std::move(ranks)), options);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    wanted = digests;
  });
  CHECK(train<Strategy, Precision>(ts::Mesh<ts::HostMpi>(world()), options) == wanted);
}

}  // namespace

TEST_CASE("training over MPI has the bits of in-process ranks") {
  ts::Options options;
  options.clip_norm = 1;
  check_training<ts::Zero3<>, ts::Fp32>(options);
  check_training<ts::Zero2, ts::Fp32>(options);
  check_training<ts::Replicate, ts::Fp32>(options);
  options.bucket_bytes = 50000;
  options.prefetch_depth = 2;
  check_training<ts::Zero3<>, ts::Fp32>(options);
  check_training<ts::Zero3<ts::Reshard::after_backward>, ts::Fp32>(options);
}

TEST_CASE("numbers and bytes of the ranks; channels and splits") {
  ts::Mpi ranks = world();
  const std::vector<double> numbers = ranks.exchange(10.0 * ranks.rank());
  for (int r = 0; r < ranks.size(); ++r) CHECK(numbers[static_cast<std::size_t>(r)] == 10.0 * r);
  std::vector<int> shared(100000, ranks.rank());
  const int root = ranks.size() - 1;
  ranks.share(shared.data(), shared.size() * sizeof(int), root);
  CHECK(shared == std::vector<int>(100000, root));
  // Two halves, ordered backwards, on which numbers are exchanged as on the whole.
  ts::Mpi half = ranks.split(ranks.rank() % 2, -ranks.rank());
  CHECK(half.size() == (ranks.size() + 1 - ranks.rank() % 2) / 2);
  CHECK(half.rank() == half.size() - 1 - ranks.rank() / 2);
  const std::vector<double> there = half.channel().exchange(ranks.rank());
  for (int r = 0; r < half.size(); ++r) {
    CHECK(there[static_cast<std::size_t>(half.size() - 1 - r)] == ranks.rank() % 2 + 2 * r);
  }
}

TEST_CASE("gathers of parts that lie apart, in place and empty, and what is counted") {
  ts::Mpi channel = world().channel();
  const auto size = static_cast<std::size_t>(channel.size());
  const auto rank = static_cast<std::size_t>(channel.rank());
  constexpr std::size_t n = 1000, stride = 1024;
  std::vector<int> full(size * stride, -1), piece(n, static_cast<int>(rank));
  std::vector<int> in_place(size * n, -1);
  std::fill_n(in_place.begin() + static_cast<std::ptrdiff_t>(rank * n), n, static_cast<int>(rank));
  ts::HostStream stream(ts::HostStream::Where::worker);
  const ts::GatherSegment segments[] = {
      {piece.data(), full.data(), n * 4, stride * 4},
      {nullptr, nullptr, 0, 0},
      {in_place.data() + rank * n, in_place.data(), n * 4, n * 4}};
  channel.all_gather(stream, {ts::CollectiveKind::all_gather, "u"}, segments);
  stream.synchronize();
  stream.check();
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < stride; ++i) {
      CHECK(full[r * stride + i] == (i < n ? static_cast<int>(r) : -1));
      if (i < n) CHECK(in_place[r * n + i] == static_cast<int>(r));
    }
  }
  const auto counts = channel.counts()[ts::CollectiveKind::all_gather];
  CHECK(counts ==
        (size == 1 ? ts::CollectiveCount{} : ts::CollectiveCount{1, 2 * n * 4 * (size - 1)}));
}
