#pragma once
// Training without shards: every rank's gradients in one place, plain loops. Written from the
// documentation and without the library's headers, so that both would have to make one mistake
// alike. Its bits are those of the library: where a rounding could be left out by contraction, the
// product goes through memory first.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace reference {

inline float times(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline double times(double a, double b) {
  const volatile double product = a * b;
  return product;
}

/// bf16 as its 16 bits; to nearest, ties to even, by looking at the two neighbours.
inline std::uint16_t to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  const std::uint32_t low = bits & 0xffffu;
  std::uint32_t high = bits >> 16;
  if (low > 0x8000u || (low == 0x8000u && high % 2 == 1)) ++high;
  return static_cast<std::uint16_t>(high);
}
inline float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// bf16 to nearest, ties away from zero.
inline std::uint16_t to_bf16_away(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<std::uint16_t>((bits >> 16) + (bits >> 15) % 2);
}

inline std::uint64_t hash(std::uint64_t z) {
  for (int round = 0; round < 2; ++round) z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
  return z ^ z >> 32;
}
/// The random 64 bits of an element in an update: 16 for the weight, 16 for each moment.
inline std::uint64_t random_word(std::uint64_t seed, std::uint64_t tensor, std::uint64_t update,
                                 std::uint64_t index) {
  const std::uint64_t golden = 0x9e3779b97f4a7c15u;
  const std::uint64_t stream = hash(hash(hash(seed + golden) ^ tensor) ^ update);
  return hash(stream + index * golden);
}
/// Up with the probability of the part that is cut off.
inline float round_at_random(float value, std::uint64_t word, int field) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t cut = bits & 0xffffu;
  const std::uint32_t random = static_cast<std::uint32_t>(word >> (16 * field)) & 0xffffu;
  const bool up = cut + random >= 0x10000u;
  return from_bf16(static_cast<std::uint16_t>((bits >> 16) + (up ? 1 : 0)));
}

enum class Element { f32, bf16, opaque };
enum class Master { fp32, split, none };
enum class Norm { l2, l1, inf };

struct Tensor {
  int unit = 0;  ///< that owns it
  Element element = Element::f32;
  Element gradient = Element::f32;
  Element sum = Element::f32;  ///< of the reduced gradient
  Element moment = Element::f32;
  Master kept = Master::fp32;  ///< of a bf16 tensor
  bool trainable = true;
  float rate_scale = 1;
  float decay = 0;
  std::vector<float> weights;         ///< the parameter's values
  std::vector<float> master;          ///< fp32; of an f32 tensor the parameter's values again
  std::vector<unsigned char> opaque;  ///< instead of weights, of a type that is only moved

  std::vector<float> moments[2] = {};
  std::vector<float> reduced = {};
  std::vector<std::vector<float>> gradients = {};  ///< by rank, unreduced
  std::vector<char> written = {};                  ///< by rank

  std::uint64_t elements() const { return weights.size(); }
};

struct Unit {
  std::vector<int> owned;     ///< tensors
  std::vector<int> borrowed;  ///< units whose tensors it shares
  float divisor = 1;
  bool in_place = false;  ///< at one rank: the gradient buffer is the reduced gradient

  int backward_leases = 0;
  bool held = false;     ///< gradients that have not been reduced
  bool reduces = false;  ///< a lease of this opening is outside accumulate()
  bool reduced = false;
};

struct Optimizer {
  enum class Kind { adamw, lion, sgd };
  Kind kind = Kind::adamw;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float momentum = 0.9f;
  bool nesterov = false;

  int moments() const { return kind == Kind::adamw ? 2 : 1; }
};

struct StepResult {
  double norm = 0;
  double clipped_norm = 0;
  bool skipped = false;
};

class Model {
 public:
  Model(int world, std::vector<Tensor> tensors, std::vector<Unit> units, const Optimizer& optimizer,
        float clip, Norm norm, std::uint64_t rounding_seed = 0)
      : world_(world),
        tensors_(std::move(tensors)),
        units_(std::move(units)),
        optimizer_(optimizer),
        clip_(clip),
        norm_(norm),
        seed_(rounding_seed) {
    for (Tensor& tensor : tensors_) {
      tensor.gradients.assign(static_cast<std::size_t>(world),
                              std::vector<float>(tensor.elements(), 0.0f));
      tensor.written.assign(static_cast<std::size_t>(world), 0);
      tensor.reduced.assign(tensor.elements(), 0.0f);
      for (auto& moment : tensor.moments) moment.assign(tensor.elements(), 0.0f);
    }
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Unit& unit(int u) const { return units_[at(u)]; }
  std::uint64_t steps() const { return steps_; }

  void set(int t, const std::vector<float>& values) {
    Tensor& tensor = tensors_[at(t)];
    tensor.master = values;
    take_weights(tensor);
  }
  /// The weights of the master that is there.
  static void take_weights(Tensor& tensor) {
    tensor.weights = tensor.master;
    if (tensor.element != Element::bf16) return;
    if (tensor.kept == Master::split) {
      for (float& weight : tensor.weights) weight = from_bf16(to_bf16_away(weight));
    } else {
      round_to_bf16(tensor.weights);
    }
    if (tensor.kept == Master::none) tensor.master = tensor.weights;
  }

  void open_backward(int u) {
    for (int owner : units_[at(u)].borrowed) open(owner);
    open(u);
  }
  /// A rank's kernel writes its gradient of a tensor: the first in an opening writes, others add.
  void add(int t, int rank, const std::vector<float>& values) {
    Tensor& tensor = tensors_[at(t)];
    std::vector<float>& buffer = tensor.gradients[at(rank)];
    const bool adds = holds(units_[at(tensor.unit)]) || tensor.written[at(rank)];
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      buffer[i] = adds ? buffer[i] + values[i] : values[i];
      if (tensor.gradient == Element::bf16) buffer[i] = from_bf16(to_bf16(buffer[i]));
    }
    tensor.written[at(rank)] = 1;
  }
  void close_backward(int u, bool reduces) {
    close(u, reduces);
    for (int owner : units_[at(u)].borrowed) close(owner, reduces);
  }
  void reduce_held() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].held) reduce(units_[u]);
    }
  }

  StepResult step(float rate) {
    StepResult result;
    result.norm = norm();
    float factor = 1;
    if (clip_ > 0) {
      factor = static_cast<float>(static_cast<double>(clip_) / (result.norm + 1e-6));
      if (!(factor < 1)) factor = 1;
    }
    result.skipped = !std::isfinite(result.norm);
    result.clipped_norm =
        result.skipped ? result.norm : times(result.norm, static_cast<double>(factor));
    if (!result.skipped) {
      ++steps_;
      beta1_power_ = times(beta1_power_, static_cast<double>(optimizer_.beta1));
      beta2_power_ = times(beta2_power_, static_cast<double>(optimizer_.beta2));
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        Tensor& tensor = tensors_[t];
        if (tensor.trainable && units_[at(tensor.unit)].reduced) update(t, tensor, factor, rate);
      }
    }
    for (Unit& unit : units_) unit.reduced = false;
    return result;
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  static void round_to_bf16(std::vector<float>& values) {
    for (float& value : values) value = from_bf16(to_bf16(value));
  }

  // Whether gradients are added to what is there.
  static bool holds(const Unit& unit) { return unit.held || (unit.in_place && unit.reduced); }

  void open(int u) {
    Unit& unit = units_[at(u)];
    if (unit.backward_leases++ > 0) return;
    unit.reduces = false;
    for (int t : unit.owned)
      std::fill(tensors_[at(t)].written.begin(), tensors_[at(t)].written.end(), 0);
  }

  void close(int u, bool reduces) {
    Unit& unit = units_[at(u)];
    unit.reduces = unit.reduces || reduces;
    if (--unit.backward_leases > 0) return;
    bool any = false;
    for (int t : unit.owned) {
      Tensor& tensor = tensors_[at(t)];
      if (!tensor.trainable || tensor.elements() == 0) continue;
      any = true;
      for (std::size_t r = 0; r < tensor.gradients.size(); ++r) {
        if (holds(unit) || tensor.written[r]) continue;
        std::fill(tensor.gradients[r].begin(), tensor.gradients[r].end(), 0.0f);
      }
    }
    if (!any) return;  // such a unit takes no part in a step
    unit.held = true;
    if (unit.reduces) reduce(unit);
  }

  // The sum in rank order, times 1 / divisor, added to what the step has so far.
  void reduce(Unit& unit) {
    const auto scale = static_cast<float>(1.0 / static_cast<double>(unit.divisor));
    for (int t : unit.owned) {
      Tensor& tensor = tensors_[at(t)];
      if (!tensor.trainable) continue;
      for (std::size_t i = 0; i < tensor.reduced.size(); ++i) {
        float sum = tensor.gradients[0][i];
        for (int r = 1; r < world_; ++r) sum = sum + tensor.gradients[at(r)][i];
        const float mean = times(sum, scale);
        tensor.reduced[i] = unit.reduced && !unit.in_place ? tensor.reduced[i] + mean : mean;
      }
      if (tensor.sum == Element::bf16) round_to_bf16(tensor.reduced);
    }
    unit.held = false;
    unit.reduced = true;
  }

  double fold(double left, double right) const {
    if (norm_ != Norm::inf) return left + right;
    return std::isnan(left) || left > right ? left : right;
  }

  // 64 elements: eight sums of every eighth element each, then halves onto halves.
  double cell(const float* x, std::size_t count) const {
    double sums[8] = {};
    double largest = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      const double value = i < count ? static_cast<double>(x[i]) : 0.0;
      sums[i % 8] += norm_ == Norm::l2 ? times(value, value) : std::fabs(value);
      largest = fold(largest, std::fabs(value));
    }
    if (norm_ == Norm::inf) return largest;
    for (std::size_t half = 4; half > 0; half /= 2) {
      for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    }
    return sums[0];
  }

  // Cells folded pairwise, level by level; one that is left over rises as it is.
  double tree(const std::vector<float>& x) const {
    std::vector<double> level;
    for (std::size_t i = 0; i < x.size(); i += 64) {
      level.push_back(cell(x.data() + i, std::min<std::size_t>(64, x.size() - i)));
    }
    while (level.size() > 1) {
      std::vector<double> above;
      for (std::size_t i = 0; i < level.size(); i += 2) {
        above.push_back(i + 1 < level.size() ? fold(level[i], level[i + 1]) : level[i]);
      }
      level = std::move(above);
    }
    return level[0];
  }

  double norm() const {
    double total = 0;
    for (const Tensor& tensor : tensors_) {
      if (!tensor.trainable || tensor.elements() == 0 || !units_[at(tensor.unit)].reduced) continue;
      total = fold(total, tree(tensor.reduced));
    }
    return norm_ == Norm::l2 ? std::sqrt(total) : total;
  }

  void update(std::size_t t, Tensor& tensor, float factor, float base_rate) const {
    const float rate = times(base_rate, tensor.rate_scale);
    for (std::size_t i = 0; i < tensor.elements(); ++i) {
      const float g = times(tensor.reduced[i], factor);
      float& w = tensor.master[i];
      float& m = tensor.moments[0][i];
      switch (optimizer_.kind) {
        case Optimizer::Kind::adamw:
          adamw(w, g, m, tensor.moments[1][i], rate, tensor.decay);
          break;
        case Optimizer::Kind::lion: lion(w, g, m, rate, tensor.decay); break;
        case Optimizer::Kind::sgd: sgd(w, g, m, rate, tensor.decay); break;
      }
      const std::uint64_t word = random_word(seed_, t, steps_, i);
      if (tensor.element == Element::bf16 && tensor.kept == Master::none) {
        w = round_at_random(w, word, 0);
      }
      for (int k = 0; tensor.moment == Element::bf16 && k < optimizer_.moments(); ++k) {
        tensor.moments[k][i] = round_at_random(tensor.moments[k][i], word, k + 1);
      }
    }
    take_weights(tensor);
  }

  static float decay_of(float rate, float decay) {
    return static_cast<float>(times(static_cast<double>(rate), static_cast<double>(decay)));
  }
  static float rest(float beta) { return static_cast<float>(1.0 - static_cast<double>(beta)); }

  void adamw(float& w, float g, float& m, float& v, float rate, float decay) const {
    const Optimizer& o = optimizer_;
    const auto step_size = static_cast<float>(static_cast<double>(rate) / (1.0 - beta1_power_));
    const auto root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - beta2_power_));
    m = times(o.beta1, m) + times(rest(o.beta1), g);
    v = times(o.beta2, v) + times(times(rest(o.beta2), g), g);
    const float root = times(std::sqrt(v), root_scale) + o.epsilon;
    w = w - (times(step_size, m / root) + times(decay_of(rate, decay), w));
  }
  void lion(float& w, float g, float& m, float rate, float decay) const {
    const Optimizer& o = optimizer_;
    const float blend = times(o.beta1, m) + times(rest(o.beta1), g);
    const float direction = blend > 0 ? 1.0f : (blend < 0 ? -1.0f : 0.0f);
    w = w - (times(rate, direction) + times(decay_of(rate, decay), w));
    m = times(o.beta2, m) + times(rest(o.beta2), g);
  }
  void sgd(float& w, float g, float& m, float rate, float decay) const {
    const Optimizer& o = optimizer_;
    const float decayed = g + times(decay, w);
    m = times(o.momentum, m) + decayed;
    const float direction = o.nesterov ? decayed + times(o.momentum, m) : m;
    w = w - times(rate, direction);
  }

  int world_;
  std::vector<Tensor> tensors_;
  std::vector<Unit> units_;
  Optimizer optimizer_;
  float clip_;
  Norm norm_;
  std::uint64_t seed_;
  std::uint64_t steps_ = 0;
  double beta1_power_ = 1;
  double beta2_power_ = 1;
};

}  // namespace reference
