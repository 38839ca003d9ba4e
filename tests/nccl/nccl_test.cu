// One NCCL rank, with NCCL and without, and what is refused. What needs a device says so and ends
// where there is none.
#include <nccl.h>
#include <stdlib.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "nccl/check_nccl.hpp"

using namespace std::chrono_literals;
using namespace nccl_test;

namespace {

// The launcher's variables for the length of a scope; the test's own are put back.
class Launched {
 public:
  Launched(const char* rank, const char* size, const char* local, const char* address,
           const char* port) {
    set("RANK", rank);
    set("WORLD_SIZE", size);
    set("LOCAL_RANK", local);
    set("MASTER_ADDR", address);
    set("MASTER_PORT", port);
  }
  ~Launched() {
    for (const auto& [name, value, there] : before_) {
      there ? setenv(name, value.c_str(), 1) : unsetenv(name);
    }
  }

 private:
  struct Kept {
    const char* name;
    std::string value;
    bool there;
  };
  void set(const char* name, const char* value) {
    const char* old = getenv(name);
    before_.push_back({name, old ? old : "", old != nullptr});
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  std::vector<Kept> before_;
};

}  // namespace

TEST_CASE("one rank without NCCL needs no device to be made, aborted and told so") {
  Nccl alone;
  CHECK(alone.rank() == 0);
  CHECK(alone.size() == 1);
  CHECK(alone.native() == nullptr);
  CHECK(alone.counts() == ts::CollectiveCounts{});
  CHECK(contains(alone.transport_note(), "one rank"));
  Nccl channel = alone.channel(), part = alone.split(3, 1);
  CHECK(channel.size() == 1);
  CHECK(part.rank() == 0);
  alone.check(kGather);
  alone.reset();
  CHECK(contains(refusal([&] { alone.split(-1); }), "the color -1"));

  channel.abort("the test says so");
  alone.abort("a later reason");
  for (Nccl* each : {&alone, &channel, &part}) {
    CHECK(each->aborted());
    CHECK(contains(refusal([&] { each->check(kGather); }),
                   "rank 0, all_gather of unit 'u': the test says so"));
    ts::CudaStream compute, side;
    CHECK(contains(refusal([&] { each->all_gather(compute, kGather, {}); }),
                   "rank 0, all_gather of unit 'u': the test says so"));
    side.kind = ts::StreamKind::gather;
    each->all_gather(side, kGather, {});  // kept for the runtime's check()
    REQUIRE(side.failure);
    CHECK(contains(refusal([&] { std::rethrow_exception(side.failure); }), "the test says so"));
    each->broadcast(side, kBroadcast, nullptr, 8, 0);  // skipped
    CHECK(contains(refusal([&] { each->reset(); }), "cannot be used again after an abort"));
    CHECK(contains(refusal([&] { each->channel(); }), "the test says so"));
  }
}

TEST_CASE("what cannot be a group is refused in a sentence") {
  CHECK(contains(refusal([] { Nccl::from_unique_id({}, 0, 0); }), "at least 1 rank, not 0"));
  CHECK(contains(refusal([] { Nccl::from_unique_id({}, 2, 2); }), "rank 2 is no place in a group"));
  CHECK(contains(refusal([] { Nccl::adopt(nullptr); }), "a null communicator"));
  NcclOptions options;
  options.cta_policy = 9;
  CHECK(contains(refusal([&] { Nccl::from_unique_id({}, 0, 1, options); }), "cta_policy is 9"));
  options = {};
  options.timeout = 0ms;
  CHECK(contains(refusal([&] { Nccl::from_environment(options); }), "timeout is 0 ms"));
  options = {};
  options.min_ctas = 5;
  options.max_ctas = 4;
  CHECK(contains(refusal([&] { Nccl::from_environment(options); }), "5 and 4, which is no range"));
  CHECK(contains(refusal([] {
                   Nccl::from_broadcast(1, 2, [](void* data, std::size_t bytes) {
                     std::memset(data, 0, bytes);  // what rank 0 sends where it failed
                   });
                 }),
                 "rank 1, making the group: rank 0 could not make the group's id"));
}

TEST_CASE("an environment that is wrong is refused in a sentence") {
  const auto launch = [] { Nccl::from_environment(); };
  {
    const Launched by("2", "2", "0", "127.0.0.1", "29500");
    CHECK(contains(refusal(launch), "RANK is 2, but WORLD_SIZE is 2"));
  }
  {
    const Launched by("one", "2", "0", "127.0.0.1", "29500");
    CHECK(contains(refusal(launch), "RANK is 'one', which is not a whole number"));
  }
  {
    const Launched by("1", "2", "0", nullptr, "29500");
    CHECK(contains(refusal(launch), "MASTER_ADDR is not set"));
  }
  {
    const Launched by("1", "2", "0", "127.0.0.1", "65535");
    CHECK(contains(refusal(launch), "MASTER_PORT is 65535"));
  }
  if (have_devices(1)) {
    const Launched by("1", "2", "999", "127.0.0.1", "29500");
    CHECK(contains(refusal(launch), "LOCAL_RANK is 999, but this process sees "));
  }
  const Launched by(nullptr, nullptr, nullptr, nullptr, nullptr);
  CHECK(Nccl::from_environment().size() == 1);
}

TEST_CASE("one rank without NCCL computes as any number of ranks does, and counts nothing") {
  if (!have_devices(1)) return;
  must(cudaSetDevice(0), "cudaSetDevice");
  Stream stream(0);
  Nccl alone;
  check_all(alone, stream);
  CHECK(alone.counts() == ts::CollectiveCounts{});
  const ts::ReduceSegment wrong[] = {{nullptr, DType::f16, nullptr, 64, 64, 1.0f, false}};
  CHECK(contains(refusal([&] { alone.reduce_scatter(stream, kReduce, wrong, nullptr); }),
                 "gradients are f32 or bf16, not f16"));
  const ts::ReduceSegment narrow[] = {
      {nullptr, DType::f32, nullptr, 64, 64, 1.0f, false, DType::bf16}};
  CHECK(contains(refusal([&] { alone.reduce_scatter(stream, kReduce, narrow, nullptr); }),
                 "a sum of f32 cannot be kept in bf16"));
  CHECK(contains(refusal([&] { alone.broadcast(stream, kBroadcast, nullptr, 4, 1); }),
                 "the root is rank 1, but the group has 1 rank(s)"));
}

TEST_CASE("one rank that is made to use NCCL computes the same, and counts") {
  if (!have_devices(1)) return;
  must(cudaSetDevice(0), "cudaSetDevice");
  Stream stream(0);
  for (const bool blocking : {false, true}) {
    NcclOptions options;
    options.force_at_one_rank = true;
    options.blocking_channels = blocking;
    const Launched by(nullptr, nullptr, nullptr, nullptr, nullptr);
    Nccl group = Nccl::from_environment(options);
    REQUIRE(group.native() != nullptr);
    Nccl channel = group.channel(), part = group.split(7);
    for (Nccl* each : {&group, &channel, &part}) {
      REQUIRE(each->size() == 1);
      check_all(*each, stream);
      const ts::CollectiveCounts counts = each->counts();
      CHECK(counts[CollectiveKind::all_gather] == ts::CollectiveCount{1, 0});
      CHECK(counts[CollectiveKind::reduce_scatter] == ts::CollectiveCount{12, 0});
      CHECK(counts[CollectiveKind::broadcast] == ts::CollectiveCount{1, 0});
    }
    PerThread callers(0);
    check_gather(channel, callers);
    check_reduce<ts::bf16>(channel, callers, DType::bf16, 640);
    // As the engine calls it where there is one rank: without scratch.
    const Device<float> full(gradients<float>(0, 640)), out(640, 0.5f);
    const ts::ReduceSegment part0[] = {{full.get(), DType::f32, out.get(), 640, 640, 2.0f, true}};
    channel.reduce_scatter(stream, kReduce, part0, nullptr);
    channel.synchronize(stream, kReduce);
    CHECK(same_bits(out.values(), expected_sum<float>(0, 1, 640, 640, 2.0f, true,
                                                      std::vector<float>(640, 0.5f))));
    Stream elsewhere(0);
    elsewhere.device = 1;
    CHECK(contains(refusal([&] { channel.broadcast(elsewhere, kBroadcast, &group, 8, 0); }),
                   "the stream is of CUDA device 1, the group of device 0"));
    channel.abort("enough");
    CHECK(contains(refusal([&] { check_gather(group, stream); }),
                   "rank 0, all_gather of unit 'u': enough"));
    CHECK(group.native() == nullptr);
    CHECK(channel.native() == nullptr);
  }
}

TEST_CASE("a communicator that is the user's stays the user's") {
  if (!have_devices(1)) return;
  must(cudaSetDevice(0), "cudaSetDevice");
  Stream stream(0);
  ncclComm_t comm = nullptr;
  const int device = 0;
  REQUIRE(ncclCommInitAll(&comm, 1, &device) == ncclSuccess);
  {
    NcclOptions options;
    options.force_at_one_rank = true;
    Nccl adopted = Nccl::adopt(comm, options);
    CHECK(adopted.native() == comm);
    CHECK(adopted.device() == 0);
    check_all(adopted, stream);
    Nccl channel = adopted.channel();
    check_all(channel, stream);
    channel.abort("no more");
    CHECK(contains(refusal([&] { adopted.check(kGather); }), "no more"));
  }
  int ranks = 0;
  CHECK(ncclCommCount(comm, &ranks) == ncclSuccess);
  CHECK(ranks == 1);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}
