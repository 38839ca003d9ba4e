// Kokkos views as tensors on the Host backend, and a Runtime whose memory, kernels and copies are
// Kokkos', with the same bits.

#include <Kokkos_Core.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

#include "kokkos_runtime.hpp"

/// A view in row-major order in memory of the process. Rebinding assigns an unmanaged view of the
/// same extents: copies of the view, which kernels may have captured, stay where they were.
template <class Data, class... Properties>
  requires std::is_same_v<typename Kokkos::View<Data, Properties...>::array_layout,
                          Kokkos::LayoutRight> &&
      std::is_same_v<typename Kokkos::View<Data, Properties...>::memory_space, Kokkos::HostSpace>
struct tessera::TensorTraits<Kokkos::View<Data, Properties...>> {
  using View = Kokkos::View<Data, Properties...>;
  using element = typename View::value_type;

  static Shape shape(const View& view) {
    std::int64_t extents[kMaxRank] = {};
    for (std::size_t i = 0; i < View::rank; ++i) {
      extents[i] = static_cast<std::int64_t>(view.extent(i));
    }
    return Shape(std::span<const std::int64_t>(extents, std::size_t{View::rank}));
  }
  static element* data(View& view) { return view.data(); }
  static void rebind(View& view, element* memory) { view = View(memory, view.layout()); }
  /// False for padded views and for sub-views with holes.
  static bool contiguous(const View& view) { return view.span_is_contiguous(); }
};

namespace {

/// Once a process; ends when the process does.
void initialise_kokkos() { static const Kokkos::ScopeGuard guard; }

// ---- A model of Kokkos views ----------------------------------------------------------------

template <class Data>
using Right = Kokkos::View<Data, Kokkos::LayoutRight, Kokkos::HostSpace>;
using Matrix = Right<float**>;

static_assert(ts::RebindableTensor<Right<float*>>);
static_assert(ts::RebindableTensor<Matrix>);
static_assert(ts::RebindableTensor<Right<float***>>);
static_assert(ts::RebindableTensor<Right<float* [3]>>);
// Initialisers are given a row-major index, so a column-major view would be filled transposed.
static_assert(!ts::ShardableTensor<Kokkos::View<float**, Kokkos::LayoutLeft, Kokkos::HostSpace>>);
static_assert(!ts::ShardableTensor<Right<const float**>>);

constexpr std::size_t kInputs = 7;
constexpr std::size_t kHidden = 19;
constexpr std::size_t kHeads = 2;
constexpr std::size_t kOutputs = 3;  // of each head
constexpr std::size_t kRows = 12;    // of the global batch
constexpr int kSteps = 3;

float value_at(std::uint64_t seed, std::uint64_t index) {
  return ts::random_normal(seed, 0, index) * 0.3f;
}

/// Weights of rank 2 and 3, as rows of inputs.
float& weight(const Matrix& w, std::size_t out, std::size_t in) { return w(out, in); }
float& weight(const Right<float***>& w, std::size_t out, std::size_t in) {
  return w(out / kOutputs, out % kOutputs, in);
}

void for_rows(std::size_t rows, const auto& body) {
  Kokkos::parallel_for(Kokkos::RangePolicy<Kokkos::Serial>(0, rows), body);
}

/// y = x w^T + b, through tanh where there is a layer behind it.
template <class Weights>
struct Layer {
  Weights w;
  Right<float*> b;
  bool last = false;
  ts::Unit unit = {};

  Matrix forward(const Matrix& x) const {
    Matrix y("y", x.extent(0), b.extent(0));
    for_rows(x.extent(0), [&](const std::size_t r) {
      for (std::size_t o = 0; o < b.extent(0); ++o) {
        float sum = b(o);
        for (std::size_t i = 0; i < x.extent(1); ++i) sum += x(r, i) * weight(w, o, i);
        y(r, o) = last ? sum : std::tanh(sum);
      }
    });
    return y;
  }

  /// dy becomes the gradient ahead of tanh; returns dx.
  template <class Lease>
  Matrix backward(const Matrix& x, const Matrix& y, const Matrix& dy, Lease& lease) {
    Matrix dx("dx", x.extent(0), x.extent(1));
    for_rows(x.extent(0), [&](const std::size_t r) {
      for (std::size_t o = 0; o < b.extent(0); ++o) {
        if (!last) dy(r, o) *= 1 - y(r, o) * y(r, o);
        for (std::size_t i = 0; i < x.extent(1); ++i) dx(r, i) += dy(r, o) * weight(w, o, i);
      }
    });
    const ts::Gradient<float> dw = lease.gradient(w);
    const ts::Gradient<float> db = lease.gradient(b);
    for_rows(b.extent(0), [&](const std::size_t o) {
      float bias = 0;
      for (std::size_t r = 0; r < x.extent(0); ++r) bias += dy(r, o);
      db.data[o] = db.accumulate ? db.data[o] + bias : bias;
      for (std::size_t i = 0; i < x.extent(1); ++i) {
        float sum = 0;
        for (std::size_t r = 0; r < x.extent(0); ++r) sum += dy(r, o) * x(r, i);
        float& to = dw.data[o * x.extent(1) + i];
        to = dw.accumulate ? to + sum : sum;
      }
    });
    return dx;
  }
};

struct Result {
  std::vector<float> parameters;
  std::vector<double> losses;
  std::uint64_t parameters_digest = 0;
  std::uint64_t moments_digest = 0;
};

template <class Strategy, class Backend>
Result train_rank(typename Backend::Communicator ranks,
                  typename Backend::Runtime::Options options) {
  Layer<Matrix> first{Matrix("w1", kHidden, kInputs), Right<float*>("b1", kHidden)};
  Layer<Matrix> second{Matrix("w2", kHidden, kHidden), Right<float*>("b2", kHidden)};
  Layer<Right<float***>> third{Right<float***>("w3", kHeads, kOutputs, kHidden),
                               Right<float*>("b3", kHeads * kOutputs), true};
  ts::Shard<Strategy, ts::OnDevice, ts::Fp32, Backend> model(
      ts::Mesh<Backend>(ranks, options), ts::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f},
      {.clip_norm = 1.0f});
  first.unit = model.add_unit("first", ts::named("w", first.w), ts::named("b", first.b));
  second.unit = model.add_unit("second", ts::named("w", second.w), ts::named("b", second.b));
  third.unit = model.add_unit("third", ts::named("w", third.w), ts::named("b", third.b));
  model.materialize(
      [](const ts::TensorInfo& info, std::uint64_t index) { return value_at(info.id, index); });
  CHECK(first.w.data() == nullptr);
  CHECK(first.w.extent(0) == kHidden);  // the shape stays

  Result result;
  const std::size_t rows = kRows / static_cast<std::size_t>(model.world_size());
  const std::size_t begin = rows * static_cast<std::size_t>(model.rank());
  for (int step = 0; step < kSteps; ++step) {
    Matrix x("x", rows, kInputs);
    Matrix target("target", rows, kHeads * kOutputs);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t row = static_cast<std::size_t>(step) * kRows + begin + r;
      for (std::size_t i = 0; i < kInputs; ++i) x(r, i) = value_at(100, row * kInputs + i);
      for (std::size_t o = 0; o < target.extent(1); ++o) target(r, o) = value_at(200, row * 8 + o);
    }
    const auto forward = [&](auto& layer, const Matrix& in) {
      auto lease = model.forward(layer.unit);
      return layer.forward(in);
    };
    const Matrix y1 = forward(first, x);
    const Matrix y2 = forward(second, y1);
    const Matrix y3 = forward(third, y2);

    Matrix dy("dy", rows, target.extent(1));
    double loss = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < target.extent(1); ++o) {
        const float error = y3(r, o) - target(r, o);
        loss += static_cast<double>(error * error) / static_cast<double>(rows);
        dy(r, o) = 2 * error / static_cast<float>(rows);
      }
    }
    result.losses.push_back(loss);
    const auto backward = [&](auto& layer, const Matrix& in, const Matrix& out, const Matrix& of) {
      auto lease = model.backward(layer.unit);
      return layer.backward(in, out, of, lease);
    };
    const Matrix dy2 = backward(third, y2, y3, dy);
    const Matrix dy1 = backward(second, y1, y2, dy2);
    backward(first, x, y1, dy1);
    CHECK_FALSE(model.step().get().skipped);
  }
  for (const ts::TensorInfo& info : model.tensors()) {
    const std::vector<float> values = model.full(ts::State::parameter(), info);
    result.parameters.insert(result.parameters.end(), values.begin(), values.end());
  }
  result.parameters_digest = model.parameters_digest();
  result.moments_digest = model.moments_digest();
  return result;
}

template <class Strategy, class Backend = ts::Host>
Result train(int world, typename Backend::Runtime::Options options = {}) {
  initialise_kokkos();
  Result result;
  ts::run_ranks(world, [&](ts::InProcess ranks) {
    Result own = train_rank<Strategy, Backend>(typename Backend::Communicator(ranks), options);
    if (ranks.rank() == 0) result = std::move(own);
  });
  return result;
}

}  // namespace

TEST_CASE("kokkos: a view is rebound to an unmanaged view of the same extents") {
  initialise_kokkos();
  const auto check = [](auto view, const ts::Shape& shape) {
    using Traits = ts::TensorTraits<decltype(view)>;
    CHECK(Traits::shape(view) == shape);
    CHECK(Traits::contiguous(view));
    const auto copy = view;
    std::vector<float> memory(view.size(), 3.0f);
    Traits::rebind(view, memory.data());
    CHECK(view.data() == memory.data());
    CHECK(view.use_count() == 0);  // not Kokkos' to free
    CHECK(Traits::shape(view) == shape);
    CHECK(copy.data() != memory.data());
    CHECK(copy.use_count() == 1);
    Traits::rebind(view, nullptr);
    CHECK(view.data() == nullptr);
    CHECK(Traits::shape(view) == shape);
  };
  check(Right<float*>("a", 5), ts::Shape{5});
  check(Right<float**>("a", 5, 3), ts::Shape{5, 3});
  check(Right<float***>("a", 5, 3, 2), ts::Shape{5, 3, 2});
  check(
      Right<float* [3]>("a", 5), ts::Shape { 5, 3 });

  // Row-major by type; without its last columns a matrix has holes in memory.
  const Matrix whole("a", 4, 6);
  Matrix columns = Kokkos::subview(whole, Kokkos::ALL, std::pair(0, 2));
  Matrix rows = Kokkos::subview(whole, std::pair(1, 3), Kokkos::ALL);
  ts::Shard<ts::Zero3<>> model(ts::Mesh<ts::Host>::single());
  CHECK_THROWS_AS(model.add_unit("columns", columns), ts::Error);
  CHECK_NOTHROW(model.add_unit("rows", rows));
}

TEST_CASE("kokkos: a model of views on the host backend") {
  const Result alone = train<ts::Zero3<>>(1);
  REQUIRE(alone.losses.size() == kSteps);
  for (int world : {2, 3}) {
    CAPTURE(world);
    const Result zero3 = train<ts::Zero3<>>(world);
    const Result replicate = train<ts::Replicate>(world);
    CHECK(zero3.parameters_digest == replicate.parameters_digest);
    CHECK(zero3.moments_digest == replicate.moments_digest);
    REQUIRE(zero3.parameters.size() == alone.parameters.size());
    float apart = 0;
    for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
      apart = std::max(apart, std::abs(zero3.parameters[i] - alone.parameters[i]));
    }
    CHECK(apart < 1e-5f);
  }
}

TEST_CASE("kokkos: a runtime on Kokkos gives the bits of Host") {
  for (int world : {1, 2, 3}) {
    for (bool side_by_side : {false, true}) {
      CAPTURE(world);
      CAPTURE(side_by_side);
      const Result host = train<ts::Zero3<>>(world);
      const Result kokkos = train<ts::Zero3<>, KokkosBackend>(world, {side_by_side});
      CHECK(kokkos.parameters_digest == host.parameters_digest);
      CHECK(kokkos.moments_digest == host.moments_digest);
    }
  }
  CHECK(train<ts::Replicate, KokkosBackend>(2).parameters_digest ==
        train<ts::Zero3<>>(2).parameters_digest);
}

TEST_CASE("kokkos: memory of the space is aligned to a cache line") {
  initialise_kokkos();
  KokkosRuntime<Kokkos::Serial> runtime;
  for (std::uint64_t bytes : {1, 63, 4096, 100000}) {
    void* memory = runtime.allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    runtime.release(memory, bytes);
  }
}

TEST_CASE("kokkos: the norm's nodes are those of the host") {
  initialise_kokkos();
  KokkosRuntime<Kokkos::Serial> runtime;
  ts::HostRuntime host;
  std::vector<float> data(64 * 37 + 5);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = value_at(1, i);
  for (ts::NormKind kind : {ts::NormKind::l2, ts::NormKind::l1, ts::NormKind::inf}) {
    const std::uint64_t first_cell = 3;
    const auto count = static_cast<std::size_t>(
        ts::node_count(first_cell, first_cell + ts::cells_of(data.size())));
    std::vector<double> actual(count), expected(count);
    auto& reduce = runtime.stream(ts::StreamKind::reduce);
    const ts::NormRange mine{data.data(), first_cell, data.size(), actual.data()};
    const ts::NormRange reference{data.data(), first_cell, data.size(), expected.data()};
    runtime.norm_nodes(reduce, kind, {&mine, 1}, nullptr);
    runtime.synchronize(reduce);
    host.norm_nodes(host.stream(ts::StreamKind::compute), kind, {&reference, 1}, nullptr);
    CHECK(actual == expected);
  }
}
