// Somebody's MLP with a tensor class of its own, made ZeRO-3 by one include. It learns
// y = sin(3 a) b from random samples, on 4 in-process ranks of 64 samples each.
#include <cmath>
#include <cstdio>
#include <tessera/tessera.hpp>
namespace ts = tessera;
using Floats = std::vector<float>;
struct Matrix {  // the trainer's own tensor class
  int rows = 0, cols = 0;
  float* data = nullptr;
};
template <>
struct tessera::TensorTraits<Matrix> {  // all tessera needs to know of a Matrix
  using element = float;
  static Shape shape(const Matrix& m) { return {m.rows, m.cols}; }
  static float* data(Matrix& m) { return m.data; }
  static void rebind(Matrix& m, float* memory) { m.data = memory; }
};

struct Layer {  // y = tanh(W x) for a batch of samples; the last layer without tanh
  Matrix w;
  bool last = false;
  ts::Unit unit = {};
  Floats x = {}, y = {};
  Floats forward(const Floats& input) {
    x = input;
    y.assign(x.size() / w.cols * w.rows, 0);
    for (std::size_t k = 0; k < y.size(); ++k) {
      const float *row = w.data + k % w.rows * w.cols, *s = &x[k / w.rows * w.cols];
      for (int i = 0; i < w.cols; ++i) y[k] += row[i] * s[i];
      if (!last) y[k] = std::tanh(y[k]);
    }
    return y;
  }
  Floats backward(const Floats& dy, float* dw) {
    Floats dx(x.size(), 0);
    std::fill_n(dw, w.rows * w.cols, 0.0f);  // the buffer holds nothing yet: write it
    for (std::size_t k = 0; k < dy.size(); ++k) {
      const std::size_t s = k / w.rows * w.cols, row = k % w.rows * w.cols;
      const float d = last ? dy[k] : dy[k] * (1 - y[k] * y[k]);
      for (int i = 0; i < w.cols; ++i) dw[row + i] += d * x[s + i];
      for (int i = 0; i < w.cols; ++i) dx[s + i] += d * w.data[row + i];
    }
    return dx;
  }
};

int main() {
  ts::run_ranks(4, [](ts::InProcess ranks) {
    std::vector<Layer> net{{{32, 3}}, {{32, 32}}, {{1, 32}, true}};
    using Model = ts::Shard<ts::Zero3<>, ts::OnDevice, ts::Fp32>;
    Model model(ts::Mesh<ts::Host>(ranks), ts::AdamW{.learning_rate = 5e-3f});
    for (Layer& l : net) l.unit = model.add_unit("layer" + std::to_string(&l - net.data()), l.w);
    model.materialize([](const ts::TensorInfo& t, std::uint64_t i) {  // each rank its own part
      return ts::random_normal(1, t.id, i) / (t.id == 0 ? 1.0f : 5.0f);
    });
    for (int step = 0; step <= 300; ++step) {
      Floats x, target, dy;
      for (int s = 0; s < 64; ++s) {
        const float a = 2 * ts::random_uniform(step, ranks.rank(), 2 * s) - 1;
        x.insert(x.end(), {a, 2 * ts::random_uniform(step, ranks.rank(), 2 * s + 1) - 1, 1});
        target.push_back(std::sin(3 * a) * x[3 * s + 1]);
      }
      for (Layer& l : net) {
        auto lease = model.forward(l.unit);  // full weights; the next unit is being gathered
        x = l.forward(x);
      }
      float loss = 0;
      for (int s = 0; s < 64; ++s) dy.push_back((x[s] - target[s]) / 64);
      for (const float d : dy) loss += 32 * d * d;
      for (std::size_t l = net.size(); l-- > 0;) {
        auto lease = model.backward(net[l].unit);  // full weights and gradient buffers
        dy = net[l].backward(dy, lease.gradient(net[l].w));
      }
      model.step();
      if (step % 60 == 0 && ranks.rank() == 0) std::printf("step %3d  loss %.5f\n", step, loss);
    }
  });
}
