// A perceptron with biases and ReLU on real numbers: forward and backward over tensors of any
// element type, and the same trained unsharded, in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace engine_test {

/// Pseudo-random in [-1, 1).
inline double noise(std::uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15u;
  i ^= i >> 29;
  i *= 0xBF58476D1CE4E5B9u;
  return static_cast<double>(i >> 11) / static_cast<double>(std::uint64_t{1} << 52) - 1;
}

/// Layers by their sizes: {in, hidden, ..., out}; parameter 2 l is layer l's weight, 2 l + 1 its
/// bias. Activations are in T.
template <class T>
struct Mlp {
  std::vector<std::size_t> sizes;
  std::vector<std::vector<T>> activations = {};  ///< of each layer's input, by row
  std::vector<T> slope = {};                     ///< d loss / d the last layer's output

  std::size_t layers() const { return sizes.size() - 1; }
  std::size_t parameters() const { return 2 * layers(); }
  std::size_t size(std::size_t p) const {
    const std::size_t l = p / 2;
    return p % 2 == 0 ? sizes[l] * sizes[l + 1] : sizes[l + 1];
  }
  static double initial(std::size_t p, std::uint64_t i) { return noise(i * 31 + p * 1000003) / 2; }

  /// Rows [first, first + rows) of the data set.
  void start(std::size_t first, std::size_t rows) {
    activations.assign(1, std::vector<T>(rows * sizes[0]));
    for (std::size_t i = 0; i < activations[0].size(); ++i) {
      activations[0][i] = static_cast<T>(noise(7000000 + first * sizes[0] + i));
    }
  }
  /// Layer l, from its weight and bias.
  template <class W, class B>
  void forward(std::size_t l, const W& weight, const B& bias) {
    const std::vector<T>& x = activations[l];
    const std::size_t in = sizes[l], out = sizes[l + 1], rows = x.size() / in;
    std::vector<T> y(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        T sum = static_cast<T>(bias[o]);
        for (std::size_t i = 0; i < in; ++i) {
          sum += x[r * in + i] * static_cast<T>(weight[o * in + i]);
        }
        y[r * out + o] = l + 1 < layers() && sum < 0 ? 0 : sum;
      }
    }
    activations.push_back(std::move(y));
  }
  /// Half the mean over rows of the squared output; sets slope.
  double loss() {
    const std::vector<T>& y = activations.back();
    const T rows = static_cast<T>(y.size() / sizes.back());
    double total = 0;
    slope.clear();
    for (T value : y) {
      total += static_cast<double>(value) * static_cast<double>(value);
      slope.push_back(value / rows);
    }
    return total / 2 / static_cast<double>(rows);
  }
  /// Layer l's gradients are handed to add(is_bias, index, value), each once a row.
  template <class W, class Add>
  void backward(std::size_t l, const W& weight, Add&& add) {
    const std::vector<T>& x = activations[l];
    const std::size_t in = sizes[l], out = sizes[l + 1], rows = x.size() / in;
    std::vector<T> down(x.size());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        const T d = slope[r * out + o];
        add(true, o, d);
        for (std::size_t i = 0; i < in; ++i) {
          add(false, o * in + i, d * x[r * in + i]);
          if (l > 0 && x[r * in + i] > 0) {
            down[r * in + i] += d * static_cast<T>(weight[o * in + i]);
          }
        }
      }
    }
    slope = std::move(down);
  }
};

/// AdamW in double on all of a perceptron, as torch writes it.
struct MlpReference {
  Mlp<double> net;
  double rate, clip = 0;
  std::vector<std::vector<double>> w = {}, m = {}, v = {}, g = {};
  int t = 0;
  double norm = 0;

  void start() {
    for (std::size_t p = 0; p < net.parameters(); ++p) {
      w.emplace_back();
      for (std::size_t i = 0; i < net.size(p); ++i) {
        w[p].push_back(static_cast<float>(net.initial(p, i)));
      }
      m.emplace_back(net.size(p));
      v.emplace_back(net.size(p));
    }
  }
  /// The loss of rows [0, rows), and one update.
  double step(std::size_t rows) {
    net.start(0, rows);
    for (std::size_t l = 0; l < net.layers(); ++l) net.forward(l, w[2 * l], w[2 * l + 1]);
    const double loss = net.loss();
    g.clear();
    for (const auto& each : w) g.emplace_back(each.size());
    for (std::size_t l = net.layers(); l-- > 0;) {
      net.backward(l, w[2 * l], [&](bool bias, std::size_t i, double value) {
        g[2 * l + (bias ? 1 : 0)][i] += value;
      });
    }
    norm = 0;
    for (const auto& each : g) {
      for (double value : each) norm += value * value;
    }
    norm = std::sqrt(norm);
    const double factor = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1;
    ++t;
    for (std::size_t p = 0; p < w.size(); ++p) {
      for (std::size_t i = 0; i < w[p].size(); ++i) {
        const double gradient = g[p][i] * factor;
        m[p][i] = 0.9 * m[p][i] + 0.1 * gradient;
        v[p][i] = 0.999 * v[p][i] + 0.001 * gradient * gradient;
        const double corrected = m[p][i] / (1 - std::pow(0.9, t));
        w[p][i] -= rate * corrected / (std::sqrt(v[p][i] / (1 - std::pow(0.999, t))) + 1e-8);
      }
    }
    return loss;
  }
};

}  // namespace engine_test
