// Memory that ranks open to each other: collectives by copies in it, and what ends their waits.
#include <chrono>
#include <cstddef>
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

constexpr std::size_t kElements = 100000;

std::vector<std::string> on_two_devices(const NcclOptions& options,
                                        const std::function<void(Nccl, Stream&)>& body) {
  const ncclUniqueId id = ts::detail::make_unique_id();
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        must(cudaSetDevice(r), "cudaSetDevice");
        Stream stream(r);
        stream.kind = ts::StreamKind::compute;  // what fails is thrown
        body(Nccl::from_unique_id(id, r, 2, options), stream);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

NcclOptions by_copies(std::chrono::milliseconds timeout) {
  NcclOptions options;
  options.transport = ts::NcclTransport::peer_copies;
  options.timeout = timeout;
  return options;
}

void set(int* at, const std::vector<int>& values) {
  must(cudaMemcpy(at, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice), "set");
  must(cudaDeviceSynchronize(), "set");
}
std::vector<int> get(const int* at, std::size_t count) {
  std::vector<int> values(count);
  must(cudaMemcpy(values.data(), at, count * sizeof(int), cudaMemcpyDeviceToHost), "get");
  return values;
}

}  // namespace

TEST_CASE("gathers and sums in opened memory, on two channels at a time, over and over") {
  if (!have_devices(2)) return;
  CHECK(on_two_devices(by_copies(60s), [](Nccl ranks, Stream& stream) {
          Nccl gather = ranks.channel(), reduce = ranks.channel();
          Stream second(stream.device);
          constexpr std::size_t bytes = kElements * sizeof(float);
          auto* memory = static_cast<std::byte*>(gather.allocate(16 * bytes));
          REQUIRE(memory != nullptr);
          CHECK(contains(gather.transport_note(), "by copy engines"));
          auto* piece = reinterpret_cast<int*>(memory);
          auto* full = reinterpret_cast<int*>(memory + bytes);
          auto* gradients = reinterpret_cast<float*>(memory + 4 * bytes);
          auto* sums = reinterpret_cast<float*>(memory + 8 * bytes);
          std::byte* const scratch = memory + 10 * bytes;
          const std::vector<float> mine =
              ::nccl_test::gradients<float>(ranks.rank(), 2 * kElements);
          must(cudaMemcpy(gradients, mine.data(), 2 * bytes, cudaMemcpyHostToDevice), "set");
          for (int turn = 0; turn < 20; ++turn) {
            CAPTURE(turn);
            set(piece, std::vector<int>(kElements, 10 * turn + ranks.rank()));
            const ts::GatherSegment segment[] = {{piece, full, bytes, bytes}};
            const ts::ReduceSegment sum[] = {
                {gradients, DType::f32, sums, kElements, kElements, 0.5f, turn > 0}};
            gather.all_gather(stream, kGather, segment);
            reduce.reduce_scatter(second, kReduce, sum, scratch);
            gather.synchronize(stream, kGather);
            reduce.synchronize(second, kReduce);
            std::vector<int> wanted(kElements, 10 * turn);
            wanted.resize(2 * kElements, 10 * turn + 1);
            CHECK(get(full, 2 * kElements) == wanted);
          }
          std::vector<float> wanted(kElements, 0.0f);
          for (int turn = 0; turn < 20; ++turn) {
            wanted = expected_sum<float>(ranks.rank(), 2, kElements, kElements, 0.5f, turn > 0,
                                         std::move(wanted));
          }
          std::vector<float> got(kElements);
          must(cudaMemcpy(got.data(), sums, bytes, cudaMemcpyDeviceToHost), "get");
          CHECK(same_bits(got, wanted));
          // What lies elsewhere goes by NCCL, in between.
          check_all(gather, stream);
          gather.release(memory);
          check_all(gather, stream);
        }) == std::vector<std::string>(2));
}

TEST_CASE("an abort ends a stream's wait for a peer that does not come; so does the time-out") {
  if (!have_devices(2)) return;
  for (const bool by_timeout : {false, true}) {
    CAPTURE(by_timeout);
    const auto thrown =
        on_two_devices(by_copies(by_timeout ? 4s : 60s), [&](Nccl ranks, Stream& stream) {
          Nccl channel = ranks.channel();
          constexpr std::size_t bytes = kElements * sizeof(int);
          auto* memory = static_cast<std::byte*>(channel.allocate(4 * bytes));
          REQUIRE(memory != nullptr);
          const ts::GatherSegment segment[] = {{memory, memory + bytes, bytes, bytes}};
          if (ranks.rank() == 0) {
            std::this_thread::sleep_for(8s);
            ranks.abort("rank 0 gives up");
            channel.release(memory);
            return;
          }
          // Several are enqueued: each of their waits has to end.
          for (int i = 0; i < 5; ++i) channel.all_gather(stream, kGather, segment);
          std::thread other([&, ranks]() mutable {
            if (by_timeout) return;
            std::this_thread::sleep_for(1s);
            ranks.abort("another thread says so");
          });
          const auto begin = std::chrono::steady_clock::now();
          const std::string text = refusal([&] { channel.synchronize(stream, kGather); });
          other.join();
          must(cudaStreamSynchronize(stream.handle), "the stream after an abort");
          CHECK(std::chrono::steady_clock::now() - begin < 20s);
          if (by_timeout) {
            CHECK(contains(text, "did not get to its end within 4000 ms"));
          }
          CHECK(contains(refusal([&] { channel.all_gather(stream, kGather, segment); }),
                         by_timeout ? "4000 ms" : "another thread says so"));
          channel.release(memory);
        });
    CHECK(thrown == std::vector<std::string>(2));
  }
}

TEST_CASE("plans that differ are refused where memory is opened") {
  if (!have_devices(2)) return;
  const auto thrown = on_two_devices(by_copies(60s), [](Nccl ranks, Stream&) {
    CHECK(contains(refusal([&] { (void)ranks.allocate(ranks.rank() == 0 ? 1 << 20 : 1 << 21); }),
                   "the ranks' plans differ"));
  });
  CHECK(thrown == std::vector<std::string>(2));
}
