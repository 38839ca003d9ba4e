// Meshes of several axes: the training is the unsharded reference's, whatever the axes.
#include "support.hpp"

#include <cmath>
#include <mutex>
#include <set>

using namespace engine_test;

namespace {

using AxesMesh = ts::Mesh<under_test::Backend>;

const ts::MeshShape kMeshes[] = {{2, 2, 1}, {4, 1, 1}, {1, 4, 1}, {2, 1, 1}, {2, 3, 1}, {3, 2, 1},
                                 {2, 4, 1}, {1, 1, 2}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}};

const std::vector<UnitSpec> kMeshUnits = {{"root", {130, 1}, {}, {.outer = true}},
                                          {"a", {64, 1000, 7}, {1}},
                                          {"nothing", {}},
                                          {"b", {513}},
                                          {"c", {3, 70}}};

template <class Strategy>
void train_on_mesh(const ts::MeshShape& shape, const ts::Options& options, int micro_steps) {
  CAPTURE(shape.describe());
  under_test::run_ranks(shape.size(), [&](under_test::Ranks ranks) {
    Toy<Strategy> toy(AxesMesh(ranks, shape, {.poison = true}), kMeshUnits, options);
    for (int s = 0; s < 3; ++s) {
      const ts::StepReport report = toy.whole_step(micro_steps);
      if (s > 0 && micro_steps == 1) {
        CHECK(report.collectives == toy.model.plan().collectives);
      }
    }
    toy.check();
    // Of all ranks, as the digest says too.
    const double digest = std::ldexp(static_cast<double>(toy.model.parameters_digest() >> 16), -48);
    for (double each : ranks.exchange(digest)) CHECK(each == digest);
  });
}

}  // namespace

TEST_CASE("B035, P059: meshes: every strategy trains to the reference, and sends what is planned") {
  for_each_strategy([]<class Strategy>() {
    for (const ts::MeshShape& shape : kMeshes) train_on_mesh<Strategy>(shape, {}, 1);
  });
}

TEST_CASE("meshes: accumulation, buckets, depths, schedules") {
  for (const ts::MeshShape& shape : {ts::MeshShape{2, 2, 1}, {3, 1, 1}, {2, 1, 2}}) {
    for (const std::uint64_t bucket : {0u, 1u, 700u, 4096u, 1u << 20}) {
      for (const auto accumulation :
           {ts::Accumulation::reduce_each, ts::Accumulation::reduce_once}) {
        ts::Options options{.bucket_bytes = bucket, .accumulation = accumulation};
        train_on_mesh<ts::Zero3<>>(shape, options, 2);
        train_on_mesh<ts::Replicate>(shape, options, 1);
      }
    }
    train_on_mesh<ts::Zero2>(shape, {.schedule = ts::Schedule::sequential}, 2);
    train_on_mesh<ts::Zero3<>>(shape, {.prefetch_depth = 3, .reductions_in_flight = 3}, 1);
    train_on_mesh<ts::Zero3<>>(shape, {.prefetch_depth = 0, .reductions_in_flight = 0}, 1);
  }
}

TEST_CASE("meshes: what sums are divided by, and the norm, are those of all data") {
  const ts::MeshShape shape{2, 2, 2};
  double norm = 0;
  under_test::run_ranks(1, [&](under_test::Ranks ranks) {
    // One rank that writes what the four would come to.
    Toy<ts::Zero3<>> toy(ranks, {{"a", {300}}}, {});
    toy.forward_all();
    auto lease = toy.model.backward(toy.unit(0));
    const auto gradient = lease.gradient(toy.tensor(0));
    const std::vector<float> weights = under_test::read(toy.tensor(0).data(), gradient.size);
    std::vector<float> values(gradient.size, 0.0f);
    for (int r = 0; r < 4; ++r) {
      for (std::uint64_t i = 0; i < gradient.size; ++i) {
        values[i] += gradient_at(r, 0, 0, i, weights[i]) / 4;
      }
    }
    under_test::write(gradient.data, values);
    lease.close();
    norm = toy.model.step().get().norm;
  });
  CHECK(norm > 0);
  under_test::run_ranks(shape.size(), [&](under_test::Ranks ranks) {
    Toy<ts::Zero3<>> toy(AxesMesh(ranks, shape), {{"a", {300}}}, {});
    CHECK(toy.whole_step().norm == norm);
  });
}

TEST_CASE("meshes: sums are in the replicas' parentheses, with one multiply at the end") {
  for (const ts::MeshShape& shape : {ts::MeshShape{2, 2, 1}, {3, 2, 1}, {2, 3, 1}, {4, 1, 1}}) {
    CAPTURE(shape.describe());
    constexpr std::uint64_t kSize = 777;
    const auto gradient_of = [](int rank, std::uint64_t i) {
      return ts::random_normal(5, static_cast<std::uint64_t>(rank), i);
    };
    std::vector<float> wanted(kSize);
    const float scale = 1.0f / static_cast<float>(shape.data_ranks());
    for (std::uint64_t i = 0; i < kSize; ++i) {
      float total = 0;
      for (int r = 0; r < shape.replicate; ++r) {
        float sum = gradient_of(r * shape.shard, i);
        for (int s = 1; s < shape.shard; ++s) sum += gradient_of(r * shape.shard + s, i);
        total = r == 0 ? sum : total + sum;
      }
      wanted[i] = scale * total;
    }
    under_test::run_ranks(shape.size(), [&](under_test::Ranks ranks) {
      ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, under_test::Backend> model(
          AxesMesh(ranks, shape));
      float* w = nullptr;
      const ts::Unit unit =
          model.add_unit("u", ts::named("w", ts::tensor(w, {static_cast<std::int64_t>(kSize)})));
      model.materialize([](const ts::TensorInfo&, std::uint64_t) { return 0.0f; });
      { const auto lease = model.forward(unit); }
      {
        auto lease = model.backward(unit);
        const auto gradient = lease.gradient(w);
        std::vector<float> values(kSize);
        for (std::uint64_t i = 0; i < kSize; ++i) values[i] = gradient_of(ranks.rank(), i);
        under_test::write(gradient.data, values);
      }
      CHECK(differences(model.full(ts::State::gradient(), "u.w"), wanted) == 0);
      (void)model.step().get();
    });
  }
}

namespace {

// Two tensors: rows of a matrix over the tensor axis, and a vector that all of it have.
struct Slices {
  std::vector<double> weights;
  double norm = 0;
  float clip_factor = 1;
};

constexpr std::int64_t kSliceRows = 6;
constexpr std::int64_t kSliceColumns = 50;

Slices train_slices(const ts::MeshShape& shape, ts::NormKind kind, bool infinite = false) {
  Slices result;
  std::mutex mutex;
  result.weights.resize(kSliceRows * kSliceColumns);
  under_test::run_ranks(shape.size(), [&](under_test::Ranks ranks) {
    AxesMesh mesh(ranks, shape);
    const int part = mesh.place().tensor;
    const std::int64_t begin = kSliceRows * part / shape.tensor;
    const std::int64_t rows = kSliceRows * (part + 1) / shape.tensor - begin;
    float* matrix = nullptr;
    float* vector = nullptr;
    ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, under_test::Backend, ts::Sgd> model(
        mesh, ts::Sgd{.learning_rate = kRate}, {.clip_norm = 4, .norm = kind});
    const ts::Slice slice{0, static_cast<std::uint64_t>(begin), kSliceRows};
    const ts::Unit unit = model.add_unit(
        "u", ts::named("m", ts::sliced(slice, ts::tensor(matrix, {rows, kSliceColumns}))),
        ts::named("v", ts::tensor(vector, {40})));
    model.materialize([](const ts::TensorInfo& info, std::uint64_t index) {
      return first_value(info.id, index);
    });
    { const auto lease = model.forward(unit); }
    {
      auto lease = model.backward(unit);
      const auto m = lease.gradient(matrix);
      std::vector<float> values(m.size);
      for (std::uint64_t i = 0; i < m.size; ++i) {
        values[i] = slope(0, 0, 0, i + static_cast<std::uint64_t>(begin * kSliceColumns));
      }
      if (infinite && part == shape.tensor - 1) values.back() = INFINITY;
      under_test::write(m.data, values);
      const auto v = lease.gradient(vector);
      values.resize(v.size);
      for (std::uint64_t i = 0; i < v.size; ++i) values[i] = slope(0, 0, 1, i);
      under_test::write(v.data, values);
    }
    const ts::StepReport report = model.step().get();
    CHECK(report.skipped == infinite);
    CHECK(report.collectives == model.plan().collectives);
    const std::vector<float> full = model.full(ts::State::parameter(), "u.m");
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < full.size(); ++i) {
      result.weights[static_cast<std::size_t>(begin * kSliceColumns) + i] =
          static_cast<double>(full[i]);
    }
    if (ranks.rank() == 0) result.norm = report.norm;
    CHECK((infinite || ranks.rank() == 0 || report.norm > 0));
  });
  return result;
}

}  // namespace

TEST_CASE(
    "B076, P086: tensor axis: sliced tensors count once a part, others once; clipping follows") {
  for (const ts::NormKind kind : {ts::NormKind::l1, ts::NormKind::l2, ts::NormKind::inf}) {
    const Slices whole = train_slices({1, 1, 1}, kind);
    CHECK(whole.norm > 0);
    for (const ts::MeshShape& shape :
         {ts::MeshShape{1, 1, 2}, {1, 1, 3}, {1, 2, 3}, {2, 2, 2}, {3, 1, 2}}) {
      CAPTURE(shape.describe());
      const Slices parts = train_slices(shape, kind);
      CHECK(parts.norm == whole.norm);
      CHECK(differences(parts.weights, whole.weights) == 0);
    }
  }
}

TEST_CASE("tensor axis: inf in one rank's slice skips the step on all of them") {
  const Slices parts = train_slices({1, 2, 3}, ts::NormKind::l2, true);
  for (std::size_t i = 0; i < parts.weights.size(); ++i) {
    CHECK(parts.weights[i] == static_cast<double>(first_value(0, i)));
  }
}

TEST_CASE("replicas that begin with other values are found out, and so are unsliced tensors") {
  const auto materialize = [](const ts::MeshShape& shape, int odd) {
    under_test::run_ranks(shape.size(), [&](under_test::Ranks ranks) {
      ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, under_test::Backend> model(
          AxesMesh(ranks, shape));
      float* p = nullptr;
      model.add_unit("u", ts::tensor(p, {1000}));
      model.materialize([&](const ts::TensorInfo&, std::uint64_t index) {
        return ranks.rank() == odd && index == 999 ? 1.0f : 0.5f;
      });
    });
  };
  CHECK_SAYS(error_of([&] {
               materialize({2, 2, 1}, 3);
             }),
             "replicas begin with other values: give all of them the same (replicas 1 and 0");
  CHECK_SAYS(error_of([&] { materialize({3, 1, 1}, 2); }), "(replicas 2 and 0 differ)");
  CHECK_SAYS(error_of([&] { materialize({1, 1, 2}, 1); }), "not sliced(...)");
  materialize({2, 2, 2}, 8);  // none
}

TEST_CASE("from_rank: one rank's values reach all replicas") {
  for (const ts::MeshShape& shape : {ts::MeshShape{2, 2, 1}, {3, 1, 1}, {2, 2, 2}, {1, 3, 2}}) {
    for (int root = 0; root < shape.data_ranks(); ++root) {
      under_test::run_ranks(shape.size(), [&](under_test::Ranks ranks) {
        AxesMesh mesh(ranks, shape);
        const int mine = shape.data_rank(mesh.place());
        ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, under_test::Backend> model(mesh);
        std::vector<float> values(1000, static_cast<float>(mine));
        float* p = values.data();
        model.add_unit("u", ts::named("w", ts::tensor(p, {1000})));
        model.materialize(ts::from_rank(root));
        const std::vector<float> full = model.full(ts::State::parameter(), "u.w");
        CHECK(differences(full, std::vector<double>(1000, root)) == 0);
      });
    }
  }
  CHECK_SAYS(error_of([&] {
               under_test::run_ranks(4, [&](under_test::Ranks ranks) {
                 ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32, under_test::Backend> model(
                     AxesMesh(ranks, {2, 1, 2}));
                 model.materialize(ts::from_rank(2));
               });
             }),
             "from_rank(2): there are 2 ranks");
}

TEST_CASE("a replica that fails ends the step of all") {
  const std::string why = error_of([&] {
    under_test::run_ranks(4, [&](under_test::Ranks ranks) {
      Toy<ts::Zero3<>> toy(AxesMesh(ranks, {2, 2, 1}), blocks(2), {});
      toy.whole_step();
      if (ranks.rank() == 3) ts::detail::fail("rank 3 gives up");
      toy.whole_step();
    });
  });
  CHECK_SAYS(why, "rank 3 gives up");
}
