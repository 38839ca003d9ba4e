#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>
#include <tessera/tessera.hpp>

#include "ranks.hpp"

using namespace tessera;
using namespace parallel_tests;
using Kind = LargestCall::Kind;

namespace {

/// y[rows, out] = x[rows, in] w[out, in]^T, in double.
Floats product(const Floats& x, const Floats& w, std::size_t in) {
  const std::size_t rows = x.size() / in, out = w.size() / in;
  Floats y(rows * out);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = 0;
      for (std::size_t i = 0; i < in; ++i)
        sum += static_cast<double>(x[r * in + i]) * w[o * in + i];
      y[r * out + o] = static_cast<float>(sum);
    }
  }
  return y;
}

Floats transposed(const Floats& x, std::size_t columns) {
  const std::size_t rows = columns == 0 ? 0 : x.size() / columns;
  Floats y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i % columns * rows + i / columns] = x[i];
  return y;
}

/// The largest difference, relative to the largest expected value.
double error(const float* got, const Floats& expected) {
  double off = 0, largest = 1e-30;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (std::isnan(difference)) return difference;
    off = std::max(off, difference);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return off / largest;
}

struct Layers {
  std::size_t rows, in, hidden, out;
};
constexpr Layers kLayers[] = {{12, 16, 24, 8}, {7, 5, 10, 3}, {2, 64, 4, 64}, {8, 64, 9, 32}};

/// y = square(x w1^T) w2^T and its gradients, without ranks.
struct Reference {
  Reference(const Layers& l, const Floats& x, const Floats& w1, const Floats& w2, const Floats& dy)
      : h(product(x, w1, l.in)) {
    Floats squared = h;
    for (float& v : squared) v *= v;
    y = product(squared, w2, l.hidden);
    dw2 = product(transposed(dy, l.out), transposed(squared, l.hidden), l.rows);
    Floats dh = product(dy, transposed(w2, l.hidden), l.out);
    for (std::size_t i = 0; i < dh.size(); ++i) dh[i] *= 2 * h[i];
    dw1 = product(transposed(dh, l.hidden), transposed(x, l.in), l.rows);
    dx = product(dh, transposed(w1, l.in), l.hidden);
  }
  Floats h, y, dx, dw1, dw2;
};

std::vector<LargestCall> largest_of(const Layers& l, RowLayout layout) {
  const Kind kind = layout == RowLayout::shared ? Kind::rows : Kind::sum;
  return {{kind, l.rows, l.in}, {kind, l.rows, l.out}};
}

}  // namespace

TEST_CASE("a column-parallel and a row-parallel layer, forward and backward, as unsharded") {
  for (const Layers& l : kLayers) {
    const Floats x = random_floats(l.rows * l.in, 1), dy = random_floats(l.rows * l.out, 2);
    const Floats w1 = random_floats(l.hidden * l.in, 3), w2 = random_floats(l.out * l.hidden, 4);
    const Reference expected(l, x, w1, w2, dy);
    for (const RowLayout layout : {RowLayout::whole, RowLayout::shared}) {
      for (int size = 1; size <= 4; ++size) {
        on_tensor_axis(size, [&](Mesh<Host>& mesh) {
          TensorGroup<Host> group(mesh, largest_of(l, layout));
          ParallelRegion<Host> region(group, layout);
          const Share rows = region.own(l.rows);
          CHECK(rows.size == (layout == RowLayout::whole ? l.rows : group.share(l.rows).size));
          const Share columns = group.share(l.hidden);
          const Floats own_w1 = rows_of(w1, l.in, columns);
          const Floats own_w2 = columns_of(w2, l.hidden, columns);
          const Floats own_x = rows_of(x, l.in, rows), own_dy = rows_of(dy, l.out, rows);
          Floats buffer(l.rows * std::max(l.in, l.out));

          const float* all = region.enter(l.rows, l.in, own_x.data(), buffer.data());
          const Floats all_x(all, all + l.rows * l.in);
          CHECK(all_x == x);
          const Floats h = product(all_x, own_w1, l.in);
          Floats squared = h;
          for (float& v : squared) v *= v;
          Floats partial =
              columns.size == 0 ? Floats(l.rows * l.out) : product(squared, own_w2, columns.size);
          Floats y(rows.size * l.out);
          region.leave(l.rows, l.out, partial.data(), y.data());
          CHECK(error(y.data(), rows_of(expected.y, l.out, rows)) < 1e-5);

          all = region.leave_backward(l.rows, l.out, own_dy.data(), buffer.data());
          const Floats all_dy(all, all + l.rows * l.out);
          CHECK(all_dy == dy);
          const Floats dw2 =
              product(transposed(all_dy, l.out), transposed(squared, columns.size), l.rows);
          CHECK(error(dw2.data(), columns_of(expected.dw2, l.hidden, columns)) < 1e-5);
          Floats dh = product(all_dy, transposed(own_w2, columns.size), l.out);
          for (std::size_t i = 0; i < dh.size(); ++i) dh[i] *= 2 * h[i];
          const Floats dw1 = product(transposed(dh, columns.size), transposed(all_x, l.in), l.rows);
          CHECK(error(dw1.data(), rows_of(expected.dw1, l.in, columns)) < 1e-5);
          Floats dx = product(dh, transposed(own_w1, l.in), columns.size);
          const float* own_dx = region.enter_backward(l.rows, l.in, dx.data());
          CHECK(error(own_dx, rows_of(expected.dx, l.in, rows)) < 1e-5);
        });
      }
    }
  }
}

// What a rank has of a matrix that lies as outside of regions, or inside of them, counts with the
// others': where all ranks have the same, it counts once. Then <y, A x> == <A^T y, x>.
TEST_CASE("backward is the transpose: <y, A x> == <A^T y, x>") {
  constexpr std::size_t kRows = 7, kColumns = 10;
  for (const RowLayout layout : {RowLayout::whole, RowLayout::shared}) {
    for (int size = 1; size <= 4; ++size) {
      on_tensor_axis(size, [&](Mesh<Host>& mesh) {
        TensorGroup<Host> group(mesh,
                                {{Kind::sum, kRows, kColumns}, {Kind::rows, kRows, kColumns}});
        ParallelRegion<Host> region(group, layout);
        const bool once = layout == RowLayout::whole;
        const auto over_ranks = [&](double mine) {
          double sum = 0;
          for (const double each : mesh.communicator().exchange(mine)) sum += each;
          return sum;
        };
        const auto outside = [&](const Floats& a, const Floats& b) {
          return once ? dot(a, b) : over_ranks(dot(a, b));
        };
        const auto inside = [&](const Floats& a, const Floats& b) { return over_ranks(dot(a, b)); };
        const Share own = region.own(kRows);
        const auto seed = static_cast<std::uint32_t>(group.rank());
        const Floats x = rows_of(random_floats(kRows * kColumns, 50), kColumns, own);  // outside
        const Floats y = random_floats(kRows * kColumns, 60 + seed);                   // inside
        Floats buffer(kRows * kColumns);

        const float* entered = region.enter(kRows, kColumns, x.data(), buffer.data());
        const double enter = inside(y, Floats(entered, entered + kRows * kColumns));
        Floats partial = y;
        const float* back = region.enter_backward(kRows, kColumns, partial.data());
        CHECK(enter == doctest::Approx(outside(Floats(back, back + x.size()), x)).epsilon(1e-5));

        partial = y;
        Floats left(x.size());
        region.leave(kRows, kColumns, partial.data(), left.data());
        const double leave = outside(x, left);
        const float* all = region.leave_backward(kRows, kColumns, x.data(), buffer.data());
        CHECK(leave ==
              doctest::Approx(inside(Floats(all, all + kRows * kColumns), y)).epsilon(1e-5));
      });
    }
  }
}
