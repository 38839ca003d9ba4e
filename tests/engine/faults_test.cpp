// Ranks that throw, stay away or disagree: one clear message on every rank, in time, and no hang.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "support.hpp"

using namespace engine_test;
using namespace std::chrono_literals;

namespace {

// Runs body on `world` ranks, each with its own try, and returns what each rank threw.
template <class Body>
std::vector<std::string> messages(int world, std::chrono::milliseconds timeout, Body&& body) {
  std::vector<std::string> thrown(static_cast<std::size_t>(world));
  under_test::run_ranks(
      world,
      [&](under_test::Ranks ranks) {
        try {
          body(ranks);
        } catch (const std::exception& error) {
          thrown[static_cast<std::size_t>(ranks.rank())] = error.what();
        }
      },
      timeout);
  return thrown;
}

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace

TEST_CASE("P035: an exception inside a lease; after reset() the next iterations are right") {
  for (const ts::Schedule schedule : {ts::Schedule::overlapped, ts::Schedule::sequential}) {
    for (int where = 0; where < 8; ++where) {  // forward of unit 0..3, backward of unit 3..0
      CAPTURE(where);
      for_each_strategy([&]<class Strategy>() {
        under_test::run_ranks(3, [&](under_test::Ranks ranks) {
          Toy<Strategy> toy(ranks, blocks(4), {.schedule = schedule, .prefetch_depth = 2},
                            {.poison = true});
          toy.whole_step();
          const auto fail_at = [&](int place) {
            if (place == where && toy.rank() == 1) throw Boom("boom");
          };
          try {
            for (int u = 0; u < 4; ++u) {
              const auto lease = toy.model.forward(toy.unit(u));
              fail_at(u);
            }
            for (int u = 3; u >= 0; --u) {
              auto lease = toy.model.backward(toy.unit(u));
              toy.write_gradients(u, lease);
              fail_at(7 - u);
            }
            toy.model.step();
            FAIL_CHECK("nobody noticed");
          } catch (const Boom&) {
            CHECK(toy.rank() == 1);
          } catch (const ts::Error& error) {
            CHECK(toy.rank() != 1);
            CHECK_SAYS(error.what(), "rank 1");
            CHECK_SAYS(error.what(), "an exception left a lease");
          }
          // Until the reset every call says what happened.
          CHECK_SAYS(error_of([&] { (void)toy.model.forward(toy.unit(0)); }), "reset()");
          toy.model.reset();
          toy.whole_step();
          const ts::StepReport report = toy.whole_step();
          CHECK(report.step == 3);
          CHECK(report.collectives == toy.model.plan().collectives);
          toy.check();
        });
      });
    }
  }
}

TEST_CASE("P035: reset() after an exception that all ranks threw, and after none") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(3));
    for (int s = 0; s < 3; ++s) {
      try {
        const auto lease = toy.model.forward(toy.unit(s));
        if (s < 2) throw Boom("boom");
      } catch (const Boom&) {
      } catch (const ts::CommunicatorError&) {  // the other rank was faster
      }
      toy.model.reset();
    }
    toy.whole_step();
    toy.check();
  });
}

TEST_CASE("a Shard that dies of an exception does not hang the others") {
  for (bool in_lease : {true, false}) {
    const double took = seconds([&] {
      const auto thrown = messages(4, 30s, [&](under_test::Ranks ranks) {
        Toy<ts::Zero3<>> toy(ranks, blocks(4), {.prefetch_depth = 3});
        for (int s = 0; s < 3; ++s) {
          for (int u = 0; u < 4; ++u) {
            const auto lease = toy.model.forward(toy.unit(u));
            if (in_lease && ranks.rank() == 2 && s == 1 && u == 1) throw Boom("boom");
          }
          if (ranks.rank() == 2 && s == 1) throw Boom("boom");
          toy.backward_all();
          toy.step();
        }
      });
      for (int r : {0, 1, 3}) {
        CHECK_SAYS(thrown[static_cast<std::size_t>(r)], "rank 2");
      }
      CHECK(thrown[2] == "boom");
    });
    CHECK(took < 2);
  }
}

TEST_CASE("run_ranks throws the cause, not what the others threw because of it") {
  const double took = seconds([] {
    CHECK_THROWS_AS(under_test::run_ranks(4,
                                          [](under_test::Ranks ranks) {
                                            Toy<ts::Zero3<>> toy(ranks, blocks(3));
                                            toy.whole_step();
                                            toy.forward_all();
                                            if (ranks.rank() == 3) throw Boom("boom");
                                            toy.backward_all();
                                            toy.step();
                                          }),
                    Boom);
  });
  CHECK(took < 2);
}

TEST_CASE("run_ranks throws the cause even when it unwinds slowly") {
  // The first rank's destructors take their time; the others have long failed a second time, on a
  // call that only says that the step has failed.
  struct Slow {
    ~Slow() { std::this_thread::sleep_for(100ms); }
  };
  CHECK_THROWS_AS(
      under_test::run_ranks(2,
                            [](under_test::Ranks ranks) {
                              const Slow slow;
                              Toy<ts::Zero2> toy(ranks, blocks(3));
                              toy.forward_all();
                              if (ranks.rank() == 0) {
                                const Slow slower;
                                const auto lease = toy.model.backward(toy.unit(2));
                                throw Boom("boom");
                              }
                              for (int u : {2, 1, 0}) {
                                const auto lease = toy.model.backward(toy.unit(u));
                                std::this_thread::sleep_for(10ms);  // its end fails silently
                              }
                              toy.model.step();
                            }),
      Boom);
}

TEST_CASE("abort(): the others' collectives fail with the reason") {
  const auto thrown = messages(3, 30s, [](under_test::Ranks ranks) {
    Toy<Keep> toy(ranks, blocks(2));
    if (ranks.rank() == 1) {
      toy.model.abort("no more data");
    } else {
      toy.whole_step();
    }
  });
  CHECK_SAYS(thrown[0], "rank 1: no more data");
  CHECK_SAYS(thrown[2], "rank 1: no more data");
}

TEST_CASE("B062: a rank that skips a unit: both units, both ranks and the collective are named") {
  SUBCASE("in forward") {
    const auto thrown = messages(2, 2s, [](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(ranks, blocks(4), {.prefetch_depth = 0});
      for (int u = 0; u < 4; ++u) {
        if (ranks.rank() == 0 || u != 2) toy.forward(u);
      }
    });
    for (const std::string& message : thrown) {
      CHECK_SAYS(message, "rank 0 is in all_gather of '2'");
      CHECK_SAYS(message, "rank 1 in all_gather of '3'");
    }
  }
  SUBCASE("in backward") {
    const auto thrown = messages(2, 2s, [](under_test::Ranks ranks) {
      Toy<ts::Zero2> toy(ranks, blocks(4));
      toy.forward_all();
      for (int u = 3; u >= 0; --u) {
        if (ranks.rank() == 0 || u != 2) toy.backward(u);
      }
      toy.step();
    });
    for (const std::string& message : thrown) {
      CHECK_SAYS(message, "rank 0 is in reduce_scatter of '2'");
      CHECK_SAYS(message, "rank 1 in reduce_scatter of '1'");
    }
  }
}

TEST_CASE("B062: a rank that stops short: the others name it within the time-out") {
  const double took = seconds([] {
    const auto thrown = messages(3, 300ms, [](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(ranks, blocks(3), {.prefetch_depth = 0});
      toy.whole_step();
      toy.forward(0);
      if (ranks.rank() == 1) {
        std::this_thread::sleep_for(600ms);  // alive, but elsewhere
        return;
      }
      toy.forward(1);
    });
    for (std::size_t r : {0u, 2u}) {
      CHECK_SAYS(thrown[r], "all_gather of '1'");
      CHECK_SAYS(thrown[r], "for rank(s) 1");
      CHECK_SAYS(thrown[r], "300 ms");
    }
  });
  CHECK(took < 2);
}

TEST_CASE("B062: ranks that registered different shapes, or different tensors of one size") {
  const auto register_and_run = [](under_test::Ranks ranks, const UnitSpec& first,
                                   const UnitSpec& second) {
    Toy<ts::Zero3<>> toy(ranks, {ranks.rank() == 0 ? first : second});
    toy.forward_all();
    toy.backward_all();
    toy.step();
  };
  SUBCASE("another size") {
    const auto thrown = messages(2, 2s, [&](under_test::Ranks ranks) {
      register_and_run(ranks, {"u", {200}}, {"u", {400}});
    });
    for (const std::string& message : thrown) {
      CHECK_SAYS(message, "ranks disagree");
      CHECK_SAYS(message, "(512 bytes)");
      CHECK_SAYS(message, "(1024 bytes)");
    }
  }
  SUBCASE("one group against two of the same total") {
    const auto thrown = messages(2, 2s, [&](under_test::Ranks ranks) {
      register_and_run(ranks, {"u", {256}}, {"u", {128, 128}, {1}});
    });
    for (const std::string& message : thrown) CHECK_SAYS(message, "ranks disagree");
  }
}

TEST_CASE("B064: 5 against 7 evaluation batches: a time-out that names the unit and the rank") {
  const auto thrown = messages(2, 300ms, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(3));
    {
      const auto evaluation = toy.model.evaluate();
      for (int batch = 0; batch < (ranks.rank() == 0 ? 5 : 7); ++batch) toy.forward_all();
    }
    std::this_thread::sleep_for(600ms);
    toy.whole_step();
  });
  CHECK_SAYS(thrown[1], "all_gather of unit '0'");
  CHECK_SAYS(thrown[1], "for rank(s) 0");
  CHECK_SAYS(thrown[0], "for rank(s) 0");  // it comes late to a group that has given up
}

TEST_CASE("P150: a unit without a backward lease is kept, or refused by an option that is named") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, blocks(2), {.unused_units = ts::UnusedUnits::refuse});
      toy.forward_all();
      toy.backward(1);
      const std::string message = error_of([&] { toy.model.step(); });
      CHECK_SAYS(message, "unit '0'");
      CHECK_SAYS(message, "Options::unused_units");
      toy.backward(0);  // nothing was changed: the step can still be completed
      CHECK(toy.step().step == 1);
      toy.check();
    });
  });
}

TEST_CASE("P035: a reset is of one Shard: another on the same ranks goes on or waits for its own") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> a(ranks, {{"a", {64}}, {"b", {64}}});
    Toy<ts::Zero3<>> b(ranks, {{"a", {40000}}, {"b", {40000}}, {"c", {40000}}},
                       {.bucket_bytes = 4096});
    for (int round = 0; round < 2; ++round) {
      b.forward(0);     // the next unit is being gathered while a is reset
      a.model.reset();  // without a fault
      b.whole_step();
      b.forward(0);
      try {
        auto lease = a.model.forward(a.unit(0));
        if (ranks.rank() == round % 2) throw std::runtime_error("fault");
        a.model.forward(a.unit(1)).close();
        a.model.step();
      } catch (const std::exception&) {
      }
      a.model.reset();
      b.model.reset();
      a.whole_step();
      b.whole_step();
    }
    a.check();
    b.check();
  });
}

TEST_CASE("a lease that fails while it opens is one left by an exception: all are told the cause") {
  const double took = seconds([] {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      std::span<float> bound(static_cast<float*>(nullptr), 16), other(bound);
      std::vector<float> copied(100, 1.0f);
      ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(ranks)};
      const ts::Unit first = model.add_unit("first", bound, ts::named("copied", copied));
      const ts::Unit second = model.add_unit("second", other);
      const ts::Unit tied = model.add_unit("tied", other, bound);
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      const auto step = [&] {
        for (ts::Unit u : {first, second, tied}) model.forward(u).close();
        for (ts::Unit u : {tied, second, first}) model.backward(u).close();
        (void)model.step().get();
      };
      step();
      for (const ts::Unit unit : {first, tied}) {
        if (ranks.rank() == 1) copied.resize(50);
        const std::string thrown = error_of([&] {
          model.forward(unit).close();
          CHECK(ranks.rank() == 0);
          for (int i = 0; i < 9; ++i) model.forward(second).close();
          step();
        });
        CHECK_SAYS(thrown, "'first.copied'");
        CHECK(bound.data() == nullptr);
        CHECK(other.data() == nullptr);
        const std::string until_reset = error_of([&] { (void)model.forward(second); });
        CHECK_SAYS(until_reset, "rank 1: a lease of unit '");
        CHECK_SAYS(until_reset, "could not be opened: tessera: tensor 'first.copied'");
        CHECK_SAYS(until_reset, "reset()");
        copied.resize(100);
        model.reset();
        step();
      }
      CHECK(model.step().get().step == 4);
    });
  });
  CHECK(took < 5);
}

namespace {
struct Stubborn {
  float* data = nullptr;
  int refuse = 0;  // 1: memory, 2: null as well
};
}  // namespace
template <>
struct tessera::TensorTraits<Stubborn> {
  using element = float;
  static Shape shape(const Stubborn&) { return {8}; }
  static float* data(Stubborn& tensor) { return tensor.data; }
  static void rebind(Stubborn& tensor, float* memory) {
    if (tensor.refuse > (memory == nullptr ? 1 : 0)) throw std::runtime_error("not there");
    tensor.data = memory;
  }
};

TEST_CASE("a tensor whose rebind throws: its neighbours are unbound, leases around it still end") {
  for (int refuse : {1, 2}) {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      std::span<float> before(static_cast<float*>(nullptr), 16), after(before), outer(before);
      Stubborn stubborn;
      ShardOf<Keep> model{ts::Mesh<under_test::Backend>(ranks)};
      const ts::Unit around = model.add_unit("around", outer);
      const ts::Unit unit = model.add_unit("u", before, stubborn, after);
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      stubborn.refuse = refuse;
      {
        auto lease = model.forward(around);
        CHECK_THROWS_WITH((void)model.forward(unit), "not there");
        CHECK(before.data() == nullptr);
        CHECK(after.data() == nullptr);
        CHECK(outer.data() != nullptr);
        CHECK_SAYS(error_of([&] { lease.close(); }), "a lease of unit 'u' could not be opened");
      }
      CHECK(outer.data() == nullptr);
      stubborn.refuse = 0;
      model.reset();
      { auto lease = model.backward(unit); }
      (void)model.step().get();
    });
  }
}

TEST_CASE("a lease in the wrong place is refused alike on all ranks, and nothing else happens") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(3));
    toy.whole_step();
    {
      const auto evaluation = toy.model.evaluate();
      toy.forward(0);
      CHECK_SAYS(error_of([&] { (void)toy.model.backward(toy.unit(0)); }), "inside evaluate()");
      toy.forward(1);
    }
    {
      const auto accumulation = toy.model.accumulate();
      CHECK_SAYS(error_of([&] { (void)toy.model.backward(toy.unit(0)); }), "reduce_once");
    }
    CHECK_SAYS(error_of([&] { (void)toy.model.forward(ts::Unit{3}); }), "no unit 3");
    toy.whole_step();
    toy.check();
  });
}

TEST_CASE("misuse that is said: a lease that has ended, a reset inside a lease, no memory yet") {
  std::span<float> w(static_cast<float*>(nullptr), 64);
  ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>::single()};
  const ts::Unit unit = model.add_unit("u", w);
  CHECK_SAYS(error_of([&] { model.reshard(unit); }), "materialize");
  const auto thrower = [](const ts::TensorInfo&, std::uint64_t) -> float {
    throw std::runtime_error("no values");
  };
  CHECK_THROWS_WITH(model.materialize(thrower), "no values");
  CHECK_SAYS(error_of([&] { (void)model.forward(unit); }), "materialize");
  ShardOf<ts::Zero3<>> other{ts::Mesh<under_test::Backend>::single()};
  const ts::Unit again = other.add_unit("u", w);
  other.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
  auto lease = other.backward(again);
  CHECK_SAYS(error_of([&] { other.reset(); }), "'u'");
  lease.close();
  CHECK_SAYS(error_of([&] { (void)lease.gradient(w); }), "ended");
}
