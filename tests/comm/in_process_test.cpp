// Ranks that are threads: exact collectives, counts, channels, groups of groups, and failures.
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/comm/in_process.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;
using ts::CollectiveKind;
using ts::InProcess;

namespace {

struct Caller : ts::HostStream {
  Caller() : HostStream(HostStream::Where::caller) {}
};
constexpr ts::CollectiveTag kGather{CollectiveKind::all_gather, "u"};
constexpr ts::CollectiveTag kReduce{CollectiveKind::reduce_scatter, "u"};

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace

TEST_CASE("P012: gathers of several segments, in place and not, at W = 1..9 and 128") {
  for (int world : {1, 2, 3, 9, 128}) {
    ts::run_ranks(world, [&](InProcess ranks) {
      Caller stream;
      const auto n = static_cast<std::size_t>(world);
      std::vector<int> full(n * 5, -1), mine(3, ranks.rank());
      std::vector<char> bytes(n, '?');
      for (std::size_t i = 0; i < 5; ++i) {
        full[static_cast<std::size_t>(ranks.rank()) * 5 + i] =
            ranks.rank() * 10 + static_cast<int>(i);
      }
      const char letter = static_cast<char>('a' + ranks.rank() % 26);
      std::vector<int> threes(n * 4, -7);
      const ts::GatherSegment segments[] = {
          {full.data() + ranks.rank() * 5, full.data(), 20, 20},
          {mine.data(), threes.data(), 12, 16},  // a stride larger than the part
          {&letter, bytes.data(), 1, 1},
          {nullptr, nullptr, 0, 0}};
      ranks.all_gather(stream, kGather, segments);
      for (int r = 0; r < world; ++r) {
        const auto at = static_cast<std::size_t>(r);
        for (std::size_t i = 0; i < 5; ++i) CHECK(full[at * 5 + i] == r * 10 + static_cast<int>(i));
        for (std::size_t i = 0; i < 3; ++i) CHECK(threes[at * 4 + i] == r);
        CHECK(threes[at * 4 + 3] == -7);
        CHECK(bytes[at] == static_cast<char>('a' + r % 26));
      }
      // Bytes that came from the others; nothing is counted for one rank by itself.
      const ts::CollectiveCount expected =
          world == 1 ? ts::CollectiveCount{} : ts::CollectiveCount{1, 33 * (n - 1)};
      CHECK(ranks.counts()[CollectiveKind::all_gather] == expected);
    });
  }
}

TEST_CASE("P013: reductions are rank-order fp32 sums, scaled once, written or accumulated") {
  // Numbers whose sum depends on the order: only ((x0 + x1) + x2) + ... gives these bits.
  const auto value = [](int rank, std::size_t i) {
    return 1.0f / static_cast<float>(3 + rank * 7 + static_cast<int>(i)) * (rank % 2 ? 1e4f : 1.0f);
  };
  for (int world : {1, 2, 5, 16}) {
    for (bool accumulate : {false, true}) {
      ts::run_ranks(world, [&](InProcess ranks) {
        Caller stream;
        constexpr std::size_t kElements = 37;
        const auto n = static_cast<std::size_t>(world);
        std::vector<float> full(n * 40);
        for (std::size_t i = 0; i < full.size(); ++i) full[i] = value(ranks.rank(), i);
        std::vector<float> out(kElements, 0.5f);
        const ts::ReduceSegment segment{full.data(), ts::DType::f32, out.data(), kElements,
                                        40,          1.0f / 3,       accumulate};
        ranks.reduce_scatter(stream, kReduce, {&segment, 1});
        for (std::size_t i = 0; i < kElements; ++i) {
          const std::size_t at = static_cast<std::size_t>(ranks.rank()) * 40 + i;
          volatile float sum = value(0, at);
          for (int r = 1; r < world; ++r) sum = sum + value(r, at);
          volatile float scaled = sum * (1.0f / 3);
          volatile float expected = accumulate ? 0.5f + scaled : scaled;
          CHECK(out[i] == expected);
        }
        if (world > 1) {
          CHECK(ranks.counts()[CollectiveKind::reduce_scatter] ==
                ts::CollectiveCount{1, kElements * 4 * (n - 1)});
        }
      });
    }
  }
}

TEST_CASE("B028, P072: bf16 on the wire is summed in fp32: 2 bytes counted, nothing lost") {
  ts::run_ranks(9, [](InProcess ranks) {
    Caller stream;
    // 256 + 8 times 1: in bf16 each 1 would be lost.
    std::vector<ts::bf16> full(9 * 4, ts::to_bf16(ranks.rank() == 0 ? 256.0f : 1.0f));
    std::vector<float> out(4);
    const ts::ReduceSegment segment{full.data(), ts::DType::bf16, out.data(), 4, 4};
    ranks.reduce_scatter(stream, kReduce, {&segment, 1});
    CHECK(out == std::vector<float>(4, 264.0f));
    CHECK(ranks.counts()[CollectiveKind::reduce_scatter].bytes == 4 * 2 * 8);
  });
}

TEST_CASE("broadcast: from any rank, an empty one too") {
  for (int root : {0, 2}) {
    ts::run_ranks(3, [&](InProcess ranks) {
      Caller stream;
      std::vector<int> data(5, ranks.rank() == root ? 42 : 0);
      ranks.broadcast(stream, {CollectiveKind::broadcast, "w"}, data.data(), 20, root);
      CHECK(data == std::vector<int>(5, 42));
      ranks.broadcast(stream, {CollectiveKind::broadcast, "w"}, nullptr, 0, root);
      const std::uint64_t received = ranks.rank() == root ? 0 : 20;
      CHECK(ranks.counts()[CollectiveKind::broadcast] == ts::CollectiveCount{2, received});
    });
  }
}

TEST_CASE("channels are orders of their own: each may be ahead of the other") {
  ts::run_ranks(2, [](InProcess ranks) {
    InProcess a = ranks.channel();
    InProcess b = ranks.channel();
    ts::HostStream on_a(ts::HostStream::Where::worker), on_b(ts::HostStream::Where::worker);
    int mine = ranks.rank(), from_a[2] = {-1, -1}, from_b[2] = {-1, -1};
    const ts::GatherSegment to_a{&mine, from_a, 4, 4};
    const ts::GatherSegment to_b{&mine, from_b, 4, 4};
    // The ranks enqueue in opposite order.
    const auto first = [&] { a.all_gather(on_a, {CollectiveKind::all_gather, "a"}, {&to_a, 1}); };
    const auto second = [&] { b.all_gather(on_b, {CollectiveKind::all_gather, "b"}, {&to_b, 1}); };
    if (ranks.rank() == 0) {
      first();
      second();
    } else {
      second();
      first();
    }
    on_a.synchronize();
    on_b.synchronize();
    CHECK(from_a[1] == 1);
    CHECK(from_b[0] == 0);
    CHECK(a.counts()[CollectiveKind::all_gather].count == 1);  // each counts its own
    CHECK(b.counts()[CollectiveKind::all_gather].count == 1);
    CHECK(ranks.counts() == ts::CollectiveCounts{});
    const InProcess copy = a;  // copies share the channel and its counts
    CHECK(copy.counts() == a.counts());
  });
}

TEST_CASE("P005: split: groups of 2 inside 4 ranks, ordered by key; an abort reaches all") {
  ts::run_ranks(4, [](InProcess ranks) {
    InProcess group = ranks.split(ranks.rank() % 2, -ranks.rank());
    CHECK(group.size() == 2);
    CHECK(group.rank() == (ranks.rank() < 2 ? 1 : 0));  // the larger rank first
    Caller stream;
    int mine = ranks.rank(), all[2] = {};
    const ts::GatherSegment segment{&mine, all, 4, 4};
    group.all_gather(stream, kGather, {&segment, 1});
    CHECK(all[0] == 2 + ranks.rank() % 2);
    CHECK(all[1] == ranks.rank() % 2);
    // Both groups are through: an abort may cut short a gather that not all have joined yet.
    int everyone[4] = {};
    const ts::GatherSegment meeting{&mine, everyone, 4, 4};
    ranks.all_gather(stream, kGather, {&meeting, 1});
    if (ranks.rank() == 3) {
      ranks.abort("over");
    } else {
      while (!group.aborted()) std::this_thread::sleep_for(1ms);
      CHECK_THROWS_AS(group.all_gather(stream, kGather, {&segment, 1}), ts::CommunicatorError);
    }
  });
}

TEST_CASE("P151: a group of no ranks is an error") {
  CHECK_THROWS_AS((void)InProcess::group(0), ts::Error);
  CHECK_THROWS_AS((void)InProcess::group(-1), ts::Error);
  const InProcess alone;
  CHECK(alone.size() == 1);
  CHECK(alone.rank() == 0);
}

TEST_CASE("run_ranks: all bodies run, the cause is thrown, whoever it is and however late") {
  std::atomic<int> ran{0};
  ts::run_ranks(7, [&](InProcess ranks) { ran += ranks.rank() + 1; });
  CHECK(ran == 28);
  for (int culprit : {0, 1, 4}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto body = [&](InProcess ranks) {
      Caller stream;
      int mine = 0;
      std::vector<int> all(5);
      const ts::GatherSegment segment{&mine, all.data(), 4, 4};
      ranks.all_gather(stream, kGather, {&segment, 1});
      if (ranks.rank() == culprit) {
        std::this_thread::sleep_for(20ms);
        throw Boom("the cause");
      }
      ranks.all_gather(stream, kGather, {&segment, 1});
    };
    CHECK_THROWS_WITH_AS(ts::run_ranks(5, body), "the cause", Boom);
    CHECK(std::chrono::steady_clock::now() - begin < 2s);
  }
  struct NotAnException {};
  CHECK_THROWS_AS(ts::run_ranks(2,
                                [](InProcess ranks) {
                                  if (ranks.rank() == 1) throw NotAnException{};
                                }),
                  NotAnException);
}

TEST_CASE("B062: segments that add up to the same but differ are a disagreement, not a crash") {
  const auto body = [](InProcess ranks) {
    Caller stream;
    std::vector<float> full(4 * 64), out(64);
    if (ranks.rank() == 0) {
      const ts::ReduceSegment one{full.data(), ts::DType::f32, out.data(), 64, 64};
      ranks.reduce_scatter(stream, kReduce, {&one, 1});
    } else {
      const ts::ReduceSegment two[] = {{full.data(), ts::DType::f32, out.data(), 32, 32},
                                       {full.data(), ts::DType::f32, out.data() + 32, 32, 32}};
      ranks.reduce_scatter(stream, kReduce, two);
    }
  };
  try {
    ts::run_ranks(2, body);
    FAIL_CHECK("nobody noticed");
  } catch (const ts::CommunicatorError& error) {
    CHECK(std::string(error.what()).find("ranks disagree") != std::string::npos);
  }
}

TEST_CASE("an abort while another rank copies from a buffer is safe") {
  // Each rank frees its buffer as soon as its own call has returned or thrown.
  for (int round = 0; round < 30; ++round) {
    ts::run_ranks(3, [&](InProcess ranks) {
      Caller stream;
      constexpr std::size_t kBytes = 1 << 20;
      std::vector<char> full(3 * kBytes);
      try {
        for (int i = 0; i < 10; ++i) {
          auto mine = std::make_unique<std::vector<char>>(kBytes, static_cast<char>(i));
          if (ranks.rank() == 2 && i == round % 10) {
            ranks.abort("stop");
            throw Boom("stop");
          }
          const ts::GatherSegment segment{mine->data(), full.data(), kBytes, kBytes};
          ranks.all_gather(stream, kGather, {&segment, 1});
          CHECK(full[0] == static_cast<char>(i));
          CHECK(full[3 * kBytes - 1] == static_cast<char>(i));
        }
      } catch (const Boom&) {
      } catch (const ts::CommunicatorError&) {
      }
    });
  }
}

TEST_CASE("P035: reset after an abort: the same handles and channels work again") {
  ts::run_ranks(3, [](InProcess ranks) {
    InProcess channel = ranks.channel();
    ts::HostStream stream(ts::HostStream::Where::worker);
    int mine = ranks.rank(), all[3] = {};
    const ts::GatherSegment segment{&mine, all, 4, 4};
    for (int round = 0; round < 20; ++round) {
      if (ranks.rank() == round % 3) {
        channel.abort("round");
      } else {
        channel.all_gather(stream, kGather, {&segment, 1});
        stream.synchronize();
        CHECK_THROWS_AS(stream.check(), ts::CommunicatorError);
      }
      stream.reset();
      ranks.reset();
      channel.reset();
      std::memset(all, 0, sizeof all);
      channel.all_gather(stream, kGather, {&segment, 1});
      stream.synchronize();
      stream.check();
      CHECK(all[2] == 2);
    }
  });
}
