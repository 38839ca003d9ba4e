// Reading and setting training state, first values, and from whom they come.
#include "support.hpp"

using namespace engine_test;

namespace {

const std::vector<UnitSpec> kStateUnits = {{"a", {1000, 3}}, {"b", {257}, {0}}, {"c", {0, 64}}};

float any_value(std::uint32_t tensor, std::uint64_t index) {
  return static_cast<float>((index * 2654435761u + tensor * 97) % 100003) / 1009.0f - 40;
}
std::vector<float> any_values(std::uint32_t tensor, std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = any_value(tensor, i);
  return values;
}

}  // namespace

TEST_CASE("P095: parameters, gradients and moments are read and set bit for bit, full and local") {
  for (int world : {1, 2, 3}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(world, [&](under_test::Ranks ranks) {
        // The reduction is late: reading and setting wait for it.
        Toy<Strategy> toy(ranks, kStateUnits, {.gathered_bytes = 2000},
                          {.poison = true, .reduce_delay = std::chrono::milliseconds(3)});
        toy.whole_step();
        toy.forward_all();
        toy.backward_all();
        for (const ts::TensorInfo& info : toy.model.tensors()) {
          const auto size = static_cast<std::size_t>(info.shape.size());
          if (!info.trainable) {
            for (ts::State state :
                 {ts::State::master(), ts::State::gradient(), ts::State::moment(0)}) {
              CHECK_SAYS(error_of([&] { (void)toy.model.full(state, info); }), info.name);
              CHECK_SAYS(error_of([&] { (void)toy.model.local(state, info); }), "frozen");
            }
            continue;
          }
          CHECK(differences(toy.model.full(ts::State::gradient(), info),
                            toy.reference.gradients[info.id]) == 0);
          std::uint32_t salt = info.id;
          for (ts::State state :
               {ts::State::parameter(), ts::State::gradient(), ts::State::moment(0)}) {
            const std::vector<float> values = any_values(salt += 10, size);
            toy.model.set_full(state, info, values);
            CHECK(toy.model.full(state, info) == values);
            const ts::LocalState mine = toy.model.local(state, info);
            REQUIRE(mine.begin + mine.values.size() <= std::max<std::size_t>(size, 1));
            for (std::size_t i = 0; i < mine.values.size(); ++i) {
              CHECK(mine.values[i] == values[mine.begin + i]);
            }
          }
          toy.reference.weights[info.id].assign(size, 0);
          for (std::size_t i = 0; i < size; ++i) {
            toy.reference.weights[info.id][i] = any_value(info.id + 10, i);
          }
        }
        for (int u = 0; u < toy.count(); ++u) toy.forward(u);  // what is gathered is the new one
      });
    });
  }
}

TEST_CASE("P095: local parts are disjoint, whole, and edits to them are what the step uses") {
  under_test::run_ranks(4, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(2, 1000));
    for (float& value : toy.model.local(ts::State::parameter(), toy.tensor(0)).values) value = 2;
    toy.reference.weights[0].assign(1000, 2);
    toy.whole_step();
    toy.check();
    const ts::LocalState mine = toy.model.local(ts::State::master(), toy.tensor(1));
    CHECK(mine.begin == 256 * static_cast<std::uint64_t>(ranks.rank()));
    CHECK(mine.values.size() == (ranks.rank() == 3 ? 232 : 256));
  });
}

TEST_CASE("P008, B126: first values depend on the global index only; all padding is zero") {
  const auto values = [](const ts::TensorInfo& info, std::uint64_t index) {
    return any_value(info.id, index);
  };
  std::uint64_t digest = 0;
  for (int world : {1, 3, 4, 8}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(world, [&](under_test::Ranks ranks) {
        float* first = nullptr;
        float* second = nullptr;
        ShardOf<Strategy> model{ts::Mesh<under_test::Backend>(ranks, {.poison = true})};
        (void)model.add_unit("experts", ts::tensor(first, {3, 5, 8}),
                             ts::tensor(second, {3, 8, 5}));
        model.materialize(values);
        CHECK(model.full(ts::State::parameter(), first) == any_values(0, 120));
        CHECK(model.full(ts::State::parameter(), "experts.1") == any_values(1, 120));
        const std::uint64_t mine = model.parameters_digest();
        if (ranks.rank() != 0) return;
        if (digest == 0) digest = mine;
        CHECK(mine == digest);
      });
    });
  }
}

TEST_CASE("P004: full weights that one rank holds reach every rank's shard") {
  for (int root : {0, 3}) {
    for_each_strategy([&]<class Strategy>() {
      under_test::run_ranks(4, [&](under_test::Ranks ranks) {
        std::vector<float> memory = any_values(1, 1000);
        const bool mine = ranks.rank() == root;
        std::span<float> w(mine ? memory.data() : nullptr, 1000);
        std::vector<float> copied = mine ? any_values(2, 70) : std::vector<float>(70);
        ShardOf<Strategy> model{ts::Mesh<under_test::Backend>(ranks)};
        const ts::Unit unit = model.add_unit("u", w, copied);
        model.materialize(ts::from_rank(root));
        CHECK(w.data() == nullptr);
        CHECK(model.full(ts::State::parameter(), w) == any_values(1, 1000));
        CHECK(model.full(ts::State::parameter(), copied) == any_values(2, 70));
        const auto lease = model.forward(unit);
        CHECK(copied == any_values(2, 70));
      });
    });
  }
}

TEST_CASE("P004: values from a rank that does not exist, or holds none, are errors with names") {
  const auto materialize = [](int root, bool memory) {
    std::vector<float> values(10);
    std::span<float> w(memory ? values.data() : nullptr, 10);
    ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(under_test::Ranks())};
    (void)model.add_unit("u", ts::named("w", w));
    model.materialize(ts::from_rank(root));
  };
  CHECK_SAYS(error_of([&] { materialize(1, true); }), "from_rank(1)");
  CHECK_SAYS(error_of([&] { materialize(-1, true); }), "from_rank(-1)");
  CHECK_SAYS(error_of([&] { materialize(0, false); }), "'u.w'");
}

TEST_CASE("P009: full weights before any step; zeroed for all, every rank reads zeros") {
  for_each_strategy([]<class Strategy>() {
    under_test::run_ranks(2, [](under_test::Ranks ranks) {
      Toy<Strategy> toy(ranks, {{"linear", {8, 2}}});
      toy.forward(0);  // gathered and compared before any step
      toy.model.set_full(ts::State::parameter(), toy.tensor(0), std::vector<float>(8, 0.0f));
      toy.reference.weights[0].assign(8, 0);
      toy.forward(0);
      toy.whole_step();
      toy.check();
    });
  });
}

TEST_CASE("P009, P151: state calls check what they are given, and name it") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(2));
    std::span<float> stranger(static_cast<float*>(nullptr), 256);
    const std::vector<float> few(255);
    CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::parameter(), stranger); }),
               "in no unit");
    CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::parameter(), "2.0"); }), "'2.0'");
    CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::moment(1), toy.tensor(0)); }),
               "moment 1");
    CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::moment(-1), toy.tensor(0)); }),
               "moment -1");
    CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::gradient(), toy.tensor(0)); }),
               "has not been reduced");
    const std::string message =
        error_of([&] { toy.model.set_full(ts::State::parameter(), toy.tensor(0), few); });
    CHECK_SAYS(message, "'0.0'");
    CHECK_SAYS(message, "256");
    CHECK_SAYS(message, "255");
    const auto lease = toy.model.forward(toy.unit(0));
    CHECK_SAYS(error_of([&] {
                 toy.model.set_full(ts::State::parameter(), toy.tensor(0), std::vector<float>(256));
               }),
               "while a lease");
  });
}

TEST_CASE("what tensors() of another Shard lists is refused, whether its id is in range or not") {
  under_test::run_ranks(1, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, blocks(2));
    Toy<ts::Zero3<>> other(ranks, {{"other", {9}}, {"x", {9}}, {"y", {9}}});
    const std::vector<ts::TensorInfo> theirs = other.model.tensors();
    CHECK_SAYS(error_of([&] { (void)toy.model.full(ts::State::parameter(), theirs[1]); }),
               "tensor 1, 'x.0', is none of this Shard's");
    CHECK_SAYS(error_of([&] { (void)toy.model.full_bytes(theirs[2]); }), "tensor 2, 'y.0'");
    CHECK_SAYS(error_of([&] { (void)toy.model.local(ts::State::parameter(), theirs[2]); }),
               "'y.0'");
    for (const ts::TensorInfo& info : toy.model.tensors()) {
      CHECK(toy.model.full(ts::State::parameter(), info).size() == 256);
    }
  });
}

TEST_CASE("digests: equal on all ranks, one bit of one element changes them, moments apart") {
  under_test::run_ranks(3, [](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(ranks, kStateUnits);
    toy.whole_step();
    const std::uint64_t parameters = toy.model.parameters_digest();
    const std::uint64_t moments = toy.model.moments_digest();
    std::vector<float> values = toy.model.full(ts::State::parameter(), toy.tensor(0));
    auto& bits = reinterpret_cast<std::uint32_t&>(values[999]);
    bits ^= 1;
    toy.model.set_full(ts::State::parameter(), toy.tensor(0), values);
    CHECK(toy.model.parameters_digest() != parameters);
    CHECK(toy.model.moments_digest() == moments);
    bits ^= 1;
    toy.model.set_full(ts::State::parameter(), toy.tensor(0), values);
    CHECK(toy.model.parameters_digest() == parameters);
    // Every rank has the same: the sum of a vote over ranks.
    under_test::Ranks channel = ranks.channel();
    ts::HostStream stream(ts::HostStream::Where::caller);
    std::uint64_t all[3] = {};
    const ts::GatherSegment segment{&parameters, all, 8, 8};
    channel.all_gather(stream, {ts::CollectiveKind::all_gather, "digest"}, {&segment, 1});
    CHECK(all[0] == all[1]);
    CHECK(all[1] == all[2]);
  });
}

TEST_CASE("P005: Shards on groups of 2 inside 4 ranks train apart, as on groups of their own") {
  std::uint64_t digests[6] = {};
  const auto train = [&](under_test::Ranks ranks, std::size_t place) {
    Toy<ts::Zero3<>> toy(ranks, kStateUnits);
    for (int s = 0; s < 2; ++s) toy.whole_step();
    toy.check();
    digests[place] = toy.model.parameters_digest();
  };
  under_test::run_ranks(4, [&](under_test::Ranks ranks) {
    train(ranks.split(ranks.rank() / 2), static_cast<std::size_t>(ranks.rank()));
  });
  under_test::run_ranks(2, [&](under_test::Ranks ranks) {
    train(ranks, 4 + static_cast<std::size_t>(ranks.rank()));
  });
  for (std::uint64_t digest : digests) CHECK(digest == digests[4]);
}

TEST_CASE("P095: an edit through local() is what every rank's next lease sees") {
  for_each_strategy([&]<class Strategy>() {
    under_test::run_ranks(2, [&](under_test::Ranks ranks) {
      std::span<float> w(static_cast<float*>(nullptr), 1000);
      ShardOf<Strategy> model{ts::Mesh<under_test::Backend>(ranks), {}, {.gathered_bytes = 2000}};
      const ts::Unit unit = model.add_unit("u", w);
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
      { const auto lease = model.forward(unit); }
      for (float& value : model.local(ts::State::parameter(), w).values) value = 2;
      const auto lease = model.forward(unit);
      for (float value : w) REQUIRE(value == 2);
      CHECK_SAYS(error_of([&] { (void)model.local(ts::State::parameter(), w); }), "'u.0'");
    });
  });
}

TEST_CASE("a gradient that waits in a bucket is reduced before it is read") {
  under_test::run_ranks(2, [](under_test::Ranks ranks) {
    std::span<float> w(static_cast<float*>(nullptr), 100);
    ShardOf<ts::Zero3<>> model{ts::Mesh<under_test::Backend>(ranks), {}, {.bucket_bytes = 1 << 20}};
    const ts::Unit unit = model.add_unit("u", w);
    model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 1.0f; });
    {
      auto lease = model.backward(unit);
      for (float& g : lease.gradient(w).span()) g = static_cast<float>(2 * ranks.rank() + 1);
    }
    for (float value : model.full(ts::State::gradient(), w)) REQUIRE(value == 2);
  });
}
