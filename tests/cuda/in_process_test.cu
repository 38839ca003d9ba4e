// Collectives of in-process ranks on CUDA, against loops.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;
using namespace std::chrono_literals;

namespace {

struct Streams {
  ts::CudaRuntime runtime;
  ts::CudaStream& gather = runtime.stream(ts::StreamKind::gather);
  ts::CudaStream& reduce = runtime.stream(ts::StreamKind::reduce);
};

constexpr ts::CollectiveTag kGather{ts::CollectiveKind::all_gather, "u"};
constexpr ts::CollectiveTag kReduce{ts::CollectiveKind::reduce_scatter, "u"};

}  // namespace

TEST_CASE("all_gather: several segments, strided, in place, empty") {
  for (int world : {1, 2, 3, 5}) {
    ts::run_cuda_ranks(world, [&](ts::CudaInProcess ranks) {
      Streams streams;
      const auto r = static_cast<std::uint64_t>(ranks.rank());
      const auto w = static_cast<std::uint64_t>(world);
      const std::size_t n = 1000;
      const OnDevice<float> piece(values(r, n));
      const OnDevice<float> full{std::vector<float>(n * w)};
      std::vector<float> own(200 * w, -1.0f);
      for (std::size_t i = 0; i < 100; ++i) own[200 * r + i] = static_cast<float>(r * 1000 + i);
      const OnDevice<float> in_place(own);
      const ts::GatherSegment segments[] = {{piece.data(), full.data(), n * 4, n * 4},
                                            {in_place.data() + 200 * r, in_place.data(), 400, 800},
                                            {nullptr, nullptr, 0, 0}};
      for (int time = 0; time < 3; ++time) {
        if (time == 1) ts::detail::launch_delay(streams.gather.handle, std::uint64_t{1000000} * r);
        ranks.all_gather(streams.gather, kGather, segments);
      }
      streams.runtime.synchronize(streams.gather);
      streams.runtime.check();
      std::vector<float> wanted;
      for (std::uint64_t p = 0; p < w; ++p) {
        const std::vector<float> theirs = values(p, n);
        wanted.insert(wanted.end(), theirs.begin(), theirs.end());
      }
      CHECK(full.host() == wanted);
      const std::vector<float> got = in_place.host();
      for (std::uint64_t p = 0; p < w; ++p) {
        for (std::size_t i = 0; i < 200; ++i) {
          CHECK(got[200 * p + i] == (i < 100 ? static_cast<float>(p * 1000 + i) : -1.0f));
        }
      }
      const std::uint64_t received = (n * 4 + 400) * (w - 1) * (world > 1 ? 3 : 0);
      CHECK(ranks.counts()[ts::CollectiveKind::all_gather].bytes == received);
    });
  }
}

TEST_CASE("reduce_scatter: rank order, bits of the host; what is read is not overwritten early") {
  for (int world : {1, 2, 4, 7}) {
    ts::run_cuda_ranks(world, [&](ts::CudaInProcess ranks) {
      Streams streams;
      const auto w = static_cast<std::size_t>(world);
      const auto r = static_cast<std::size_t>(ranks.rank());
      const std::size_t n = 321;
      const OnDevice<float> mine(values(r, n * w));
      const OnDevice<float> out{std::vector<float>(n)};
      const ts::ReduceSegment segment{mine.data(), ts::DType::f32, out.data(), n, n, 0.2f, false};
      ranks.reduce_scatter(streams.reduce, kReduce, {&segment, 1});
      // Enqueued behind it, on every rank: nobody may still be reading.
      streams.runtime.fill(streams.reduce, mine.data(), 0xFF, n * w * 4);
      std::vector<std::vector<float>> all;
      std::vector<const float*> sources;
      for (std::size_t p = 0; p < w; ++p) all.push_back(values(p, n * w));
      for (std::size_t p = 0; p < w; ++p) sources.push_back(all[p].data() + n * r);
      std::vector<float> wanted(n);
      ts::rank_sum(n, sources.data(), world, 0.2f, false, wanted.data());
      streams.runtime.synchronize(streams.reduce);
      CHECK(different_bits(out.host(), wanted) == 0);
    });
  }
}

TEST_CASE("broadcast, exchange, channels of their own, split") {
  ts::run_cuda_ranks(4, [](ts::CudaInProcess ranks) {
    Streams streams;
    const OnDevice<float> data(values(static_cast<std::uint64_t>(ranks.rank()), 77));
    ranks.broadcast(streams.reduce, {ts::CollectiveKind::broadcast, "w"}, data.data(), 77 * 4, 2);
    streams.runtime.synchronize(streams.reduce);
    CHECK(data.host() == values(2, 77));
    CHECK(ranks.exchange(ranks.rank() * 1.5) == std::vector<double>{0, 1.5, 3, 4.5});
    ts::CudaInProcess channel = ranks.channel();
    ts::CudaInProcess pair = ranks.split(ranks.rank() % 2);
    CHECK(pair.size() == 2);
    const OnDevice<int> own({ranks.rank()}), all({-1, -1});
    const ts::GatherSegment segment{own.data(), all.data(), 4, 4};
    pair.all_gather(streams.gather, kGather, {&segment, 1});
    streams.runtime.synchronize(streams.gather);
    CHECK(all.host() == std::vector<int>{ranks.rank() % 2, ranks.rank() % 2 + 2});
    CHECK(channel.counts() == ts::CollectiveCounts{});
  });
}

TEST_CASE("a rank that stays away, another collective, an abort: named on the others, no hang") {
  const auto failure = [](auto&& body) {
    std::string said;
    try {
      ts::run_cuda_ranks(2, body, 500ms);
    } catch (const std::exception& error) {
      said = error.what();
    }
    return said;
  };
  const auto gather_of = [](ts::CudaInProcess& ranks, std::uint64_t bytes) {
    Streams streams;
    const OnDevice<float> own(values(1, 64)), all(values(2, 128));
    const ts::GatherSegment segment{own.data(), all.data(), bytes, 256};
    ranks.all_gather(streams.gather, kGather, {&segment, 1});
    streams.runtime.check();
  };
  const std::string absent = failure([&](ts::CudaInProcess ranks) {
    if (ranks.rank() == 0) gather_of(ranks, 256);
  });
  CHECK_MESSAGE(absent.find("waited 500 ms in all_gather of 'u'") != std::string::npos, absent);
  const std::string other =
      failure([&](ts::CudaInProcess ranks) { gather_of(ranks, ranks.rank() == 0 ? 256 : 128); });
  CHECK_MESSAGE(other.find("ranks disagree") != std::string::npos, other);
  const std::string threw = failure([&](ts::CudaInProcess ranks) {
    if (ranks.rank() == 1) throw ts::Error("no more data");
    gather_of(ranks, 256);
  });
  CHECK_MESSAGE(threw.find("no more data") != std::string::npos, threw);
}
