// Several NCCL ranks, threads with a device each, against in-process arithmetic; and ranks that do
// not come. What needs more devices than there are says so and ends.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "nccl/check_nccl.hpp"

using namespace std::chrono_literals;
using namespace nccl_test;

namespace {

// body(rank, stream) on a thread a device; what each threw.
std::vector<std::string> on_devices(int size, const NcclOptions& options,
                                    const std::function<void(Nccl, Stream&)>& body) {
  const ncclUniqueId id = ts::detail::make_unique_id();
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        must(cudaSetDevice(r), "cudaSetDevice");
        Stream stream(r);
        body(Nccl::from_unique_id(id, r, size, options), stream);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}
std::vector<std::string> nothing(int size) {
  return std::vector<std::string>(static_cast<std::size_t>(size));
}

}  // namespace

TEST_CASE("several ranks: the bits of in-process ranks, on groups, channels and splits") {
  if (!have_devices(2)) return;
  const int devices = std::min(device_count(), 8);
  for (int size = 2; size <= devices; size = size == devices ? devices + 1 : devices) {
    for (const bool blocking : {false, true}) {
      CAPTURE(size);
      CAPTURE(blocking);
      NcclOptions options;
      options.blocking_channels = blocking;
      options.timeout = 60s;
      CHECK(on_devices(size, options, [&](Nccl ranks, Stream& stream) {
              check_all(ranks, stream);
              Nccl channel = ranks.channel();
              CHECK(channel.rank() == ranks.rank());
              check_all(channel, stream);
              const auto others = static_cast<std::uint64_t>(size - 1);
              CHECK(channel.counts()[CollectiveKind::all_gather] ==
                    ts::CollectiveCount{1, 3 * 4000 * others});
              CHECK(channel.counts()[CollectiveKind::reduce_scatter].count == 12);
              CHECK(channel.counts()[CollectiveKind::broadcast] ==
                    ts::CollectiveCount{static_cast<std::uint64_t>(size), 1200 * others});
              // Two halves, ordered backwards.
              Nccl team = ranks.split(ranks.rank() % 2, -ranks.rank());
              CHECK(team.size() == (size + 1 - ranks.rank() % 2) / 2);
              CHECK(team.rank() == team.size() - 1 - ranks.rank() / 2);
              check_all(team, stream);
              PerThread callers(stream.device);
              check_all(channel, callers);
              check_all(ranks, stream);
            }) == nothing(size));
    }
  }
}

TEST_CASE("symmetric windows change how bytes travel and not which arrive") {
  if (!have_devices(2)) return;
  NcclOptions options;
  options.symmetric_windows = true;
  options.cta_policy = NCCL_CTA_POLICY_ZERO;
  options.timeout = 60s;
  CHECK(on_devices(2, options, [&](Nccl ranks, Stream& stream) {
          const std::size_t bytes = 4 << 20;
          void* memory = nullptr;
          if (ncclMemAlloc(&memory, 3 * bytes) != ncclSuccess) ts::detail::fail("no memory");
          {
            Nccl channel = ranks.channel();
            const bool made = channel.register_memory(memory, 3 * bytes);
            if (ranks.rank() == 0) MESSAGE(made, ": ", channel.transport_note());
            auto* piece = static_cast<std::byte*>(memory);
            std::byte* full = piece + bytes;
            must(cudaMemset(piece, 7 + ranks.rank(), bytes), "cudaMemset");
            must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            const ts::GatherSegment segment[] = {{piece, full, bytes, bytes}};
            for (int turn = 0; turn < 3; ++turn) channel.all_gather(stream, kGather, segment);
            channel.synchronize(stream, kGather);
            std::vector<unsigned char> got(2 * bytes);
            must(cudaMemcpy(got.data(), full, got.size(), cudaMemcpyDeviceToHost), "download");
            CHECK(std::count(got.begin(), got.end(), 7) == static_cast<std::ptrdiff_t>(bytes));
            CHECK(std::count(got.begin(), got.end(), 8) == static_cast<std::ptrdiff_t>(bytes));
            CHECK(contains(refusal([&] { channel.register_memory(piece + 8, 64); }),
                           "must be a multiple of 4096"));
          }
          ncclMemFree(memory);
        }) == nothing(2));
}

TEST_CASE("an abort frees a rank whose peer does not come") {
  if (!have_devices(2)) return;
  for (const bool blocking : {false, true}) {
    NcclOptions options;
    options.timeout = 60s;
    options.blocking_channels = blocking;
    const auto thrown = on_devices(2, options, [&](Nccl ranks, Stream& stream) {
      Nccl channel = ranks.channel();
      check_gather(channel, stream);  // so that what follows waits on the device
      if (ranks.rank() == 0) {
        std::this_thread::sleep_for(3s);
        ranks.abort("rank 0 gives up");
        return;
      }
      std::thread other([ranks]() mutable {
        std::this_thread::sleep_for(1s);
        ranks.abort("another thread says so");
      });
      const auto begin = std::chrono::steady_clock::now();
      const std::string text = refusal([&] { check_gather(channel, stream); });
      const auto took = std::chrono::steady_clock::now() - begin;
      other.join();
      CHECK(contains(text, "rank 1, all_gather of unit 'u': another thread says so"));
      CHECK(took < 30s);
      must(cudaStreamSynchronize(stream.handle), "the stream after an abort");
      CHECK(contains(refusal([&] { ranks.channel(); }), "another thread says so"));
    });
    CHECK(thrown == nothing(2));
  }
}

TEST_CASE("a rank that does not come is named by the time-out of those who wait") {
  if (!have_devices(2)) return;
  NcclOptions options;
  options.timeout = 5s;
  SUBCASE("in a collective") {
    CHECK(on_devices(2, options, [&](Nccl ranks, Stream& stream) {
            check_gather(ranks, stream);
            if (ranks.rank() == 0) {
              std::this_thread::sleep_for(8s);
              ranks.abort("rank 0 gives up");
              return;
            }
            CHECK(contains(refusal([&] { check_gather(ranks, stream); }), "within 5000 ms"));
            must(cudaStreamSynchronize(stream.handle), "the stream after an abort");
          }) == nothing(2));
  }
  SUBCASE("in making a channel") {
    CHECK(on_devices(2, options, [&](Nccl ranks, Stream&) {
            if (ranks.rank() == 0) {
              std::this_thread::sleep_for(8s);
              ranks.abort("rank 0 gives up");
              return;
            }
            CHECK(contains(refusal([&] { ranks.channel(); }),
                           "rank 1, making a channel: ncclCommSplit did not end within 5000 ms"));
          }) == nothing(2));
  }
  SUBCASE("in making the group") {
    const ncclUniqueId id = ts::detail::make_unique_id();
    must(cudaSetDevice(0), "cudaSetDevice");
    CHECK(contains(refusal([&] { Nccl::from_unique_id(id, 0, 2, options); }),
                   "rank 0, making the group: ncclCommInitRankConfig did not end within 5000 ms"));
  }
}
