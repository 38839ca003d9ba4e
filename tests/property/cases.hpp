#pragma once
// A case: units of tensors, a policy, options, and what the program does with them. A value, made
// from two numbers, that can be edited and run again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <tessera/engine/options.hpp>

namespace property {

/// SplitMix64's finaliser: a hash of 64 bits.
inline std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
template <class... More>
std::uint64_t mix(std::uint64_t first, More... more) {
  return mix(first ^ mix(static_cast<std::uint64_t>(more)...));
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return mix(state_++) % bound; }
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }

 private:
  std::uint64_t state_;
};

enum class Type { f32, bf16, i64, u8, block16 };  // block16: 16 bytes that are only moved
enum class Form { pointer, span, vector };        // a vector is copied into, the others rebound
enum class Strategy { replicate, zero1, zero2, zero3, zero3_keep, by_budget };
enum class Precision {
  fp32,
  bf16,
  bf16_fp32_gradients,
  bf16_reduced,
  split,  ///< SplitMaster<WithReduced<Bf16, bf16>>
  pure,   ///< WithMoments<PureBf16<>, bf16>
  fp32_moments,
};
inline constexpr int kPrecisions = 7;
enum class Rule { adamw, lion, sgd };
enum class Initial { function, from_tensors, from_rank };

struct TensorSpec {
  std::uint64_t key = 0;  ///< its values and gradients hang on it, not on its place
  Type type = Type::f32;
  Form form = Form::pointer;
  bool trainable = true;
  bool decay = true;
  int group = 0;
  std::vector<std::int64_t> shape = {};

  std::uint64_t elements() const {
    std::uint64_t n = 1;
    for (std::int64_t extent : shape) n *= static_cast<std::uint64_t>(extent);
    return n;
  }
  std::uint64_t width() const {
    switch (type) {
      case Type::f32: return 4;
      case Type::bf16: return 2;
      case Type::i64: return 8;
      case Type::u8: return 1;
      case Type::block16: return 16;
    }
    return 0;
  }
  bool is_float() const { return type == Type::f32 || type == Type::bf16; }
};

struct UnitSpec {
  std::vector<int> tensors = {};  ///< tied where an earlier unit, or this one, has it already
  tessera::UnitOptions options = {};
};

struct Case {
  std::uint64_t seed = 0;  ///< of all values
  int world = 1;
  Strategy strategy = Strategy::zero3;
  Precision precision = Precision::fp32;
  Rule rule = Rule::adamw;
  float rate = 0.01f;
  float weight_decay = 0;
  tessera::Options options = {};
  Initial initial = Initial::function;
  std::vector<TensorSpec> tensors = {};  ///< in the order in which units first list them
  std::vector<UnitSpec> units = {};

  int steps = 2;
  int micro_steps = 1;
  bool poison = false;
  int jitter_us = 0;

  // What the program does beside plain passes.
  bool new_rate = false;          ///< the learning rate changes every step
  bool evaluates = false;         ///< a pass that is no part of the step, ahead of backward
  bool leases_twice = false;      ///< some units are leased twice in a forward
  bool overlapping = false;       ///< neighbours' forward leases overlap
  bool two_forwards = false;      ///< then two backwards
  bool other_order = false;       ///< the second step goes through the units backwards
  int unused_unit = -1;           ///< is not leased in the second step
  bool skips_gradients = false;   ///< some are not asked for, not by all ranks alike
  bool asks_twice = false;        ///< some kernels write a gradient twice
  bool gradients_only = false;    ///< some units' backward gathers nothing
  bool reduces_by_call = false;   ///< with reduce_once: by reduce_gradients()
  bool reshards_by_call = false;  ///< after each forward pass
  bool reads_gradients = false;   ///< before each step()
  bool sets_values = false;       ///< by set_full, ahead of the second step
  bool infinite = false;          ///< a gradient of the second step is inf on one rank

  bool once() const { return options.accumulation == tessera::Accumulation::reduce_once; }
  /// The first unit that lists the tensor.
  int owner(int tensor) const {
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (int t : units[u].tensors) {
        if (t == tensor) return static_cast<int>(u);
      }
    }
    return -1;
  }
  std::vector<int> borrowed(int unit) const {
    std::vector<int> owners;
    for (int t : units[static_cast<std::size_t>(unit)].tensors) {
      const int from = owner(t);
      if (from == unit || std::find(owners.begin(), owners.end(), from) != owners.end()) continue;
      owners.push_back(from);
    }
    return owners;
  }
  /// The program is what the library expects before the first step, and every step alike.
  bool expected_order() const {
    return micro_steps == 1 && !evaluates && !leases_twice && !overlapping && !other_order &&
           unused_unit < 0 && !gradients_only && !(once() && reduces_by_call) &&
           !reshards_by_call && !reads_gradients && !sets_values && !infinite;
  }
};

/// After an edit: tensors that no unit lists go, the others are numbered as units list them.
inline void renumber(Case& c) {
  std::vector<TensorSpec> kept;
  std::vector<int> number(c.tensors.size(), -1);
  for (UnitSpec& unit : c.units) {
    for (int& t : unit.tensors) {
      int& to = number[static_cast<std::size_t>(t)];
      if (to < 0) {
        to = static_cast<int>(kept.size());
        kept.push_back(c.tensors[static_cast<std::size_t>(t)]);
      }
      t = to;
    }
  }
  c.tensors = std::move(kept);
  if (c.unused_unit >= static_cast<int>(c.units.size())) c.unused_unit = -1;
}

inline bool reduces_to_bf16(Precision precision) {
  return precision >= Precision::bf16_reduced && precision <= Precision::pure;
}

inline Type parameter_type(Precision precision) {
  const bool fp32 = precision == Precision::fp32 || precision == Precision::fp32_moments;
  return fp32 ? Type::f32 : Type::bf16;
}

inline std::vector<std::int64_t> random_shape(Random& random) {
  if (random.chance(10)) {
    return random.of<std::vector<std::int64_t>>({{0}, {3, 0}, {0, 5, 2}, {0, 0}});
  }
  if (random.chance(8)) return random.of<std::vector<std::int64_t>>({{}, {1}, {1, 1}, {1, 1, 1}});
  if (random.chance(15)) return {random.between(2, 7)};
  if (random.chance(25)) return {64 * random.between(1, 8) + random.between(-1, 1)};
  if (random.chance(25)) return {random.of({67, 127, 131, 257, 521, 1009, 1999})};
  if (random.chance(30)) return {random.between(1, 40), random.between(1, 40)};
  if (random.chance(30)) return {random.between(1, 9), random.between(1, 9), random.between(1, 16)};
  return {random.between(1, 300)};
}

inline TensorSpec random_tensor(Random& random, Precision precision) {
  TensorSpec tensor;
  tensor.key = random.below(1u << 30);
  tensor.shape = random_shape(random);
  tensor.trainable = !random.chance(20);
  tensor.type = random.chance(75) ? parameter_type(precision) : Type::f32;
  if (!tensor.trainable) {
    tensor.type = random.of({Type::f32, Type::bf16, Type::i64, Type::u8, Type::block16});
  }
  tensor.decay = !random.chance(25);
  tensor.form = random.of({Form::pointer, Form::pointer, Form::span, Form::vector});
  return tensor;
}

inline void add_units(Case& c, Random& random) {
  const int units = random.between(0, 19) == 0 ? 0 : random.between(1, 5);
  for (int u = 0; u < units; ++u) {
    UnitSpec unit;
    const int tensors = random.between(0, 4);
    for (int i = 0; i < tensors; ++i) {
      if (!c.tensors.empty() && random.chance(12)) {  // tied, within the unit or across
        unit.tensors.push_back(random.between(0, static_cast<int>(c.tensors.size()) - 1));
        continue;
      }
      unit.tensors.push_back(static_cast<int>(c.tensors.size()));
      c.tensors.push_back(random_tensor(random, c.precision));
    }
    unit.options.outer = random.chance(10);
    unit.options.override_reshard = random.chance(20);
    unit.options.reshard =
        random.of({tessera::Reshard::after_forward, tessera::Reshard::after_backward,
                   tessera::Reshard::after_step});
    if (random.chance(10)) unit.options.gradient_divisor = 3;
    c.units.push_back(std::move(unit));
  }
  if (random.chance(30)) {
    c.options.groups = {{1, -1}, {0.5f, 0.25f}, {2, -1}};
    for (TensorSpec& tensor : c.tensors) tensor.group = random.between(0, 2);
  }
}

inline void add_options(Case& c, Random& random) {
  std::uint64_t all = 0;
  for (const TensorSpec& tensor : c.tensors) all += tensor.elements() * tensor.width();
  const std::uint64_t one =
      c.tensors.empty() ? 64 : c.tensors[random.below(c.tensors.size())].elements() * 4;
  tessera::Options& o = c.options;
  if (random.chance(30)) o.schedule = tessera::Schedule::sequential;
  o.prefetch_depth = random.between(0, 3);
  if (random.chance(25)) o.prefetch_bytes = random.below(all + 1);
  o.reductions_in_flight = random.between(0, 2);
  o.bucket_bytes = random.of<std::uint64_t>({0, 0, 64, 700, one, all / 3, all, 1u << 30});
  if (random.chance(35)) o.accumulation = tessera::Accumulation::reduce_once;
  o.gathered_bytes = random.below(2 * all + 1);
  o.clip_norm = random.of({0.0f, 0.05f, 1.0f, 1e6f});
  o.norm = random.of({tessera::NormKind::l2, tessera::NormKind::l2, tessera::NormKind::l1,
                      tessera::NormKind::inf});
  if (random.chance(20)) o.gradient_divisor = random.of({1.0f, 5.0f, 0.5f});
  o.trace = random.chance(10);
}

inline void add_program(Case& c, Random& random) {
  c.steps = random.between(2, 3);
  c.micro_steps = random.chance(50) ? 1 : random.between(2, 3);
  if (random.chance(30)) return;  // a plain program, so that all of it is as expected
  c.new_rate = random.chance(30);
  c.evaluates = random.chance(25);
  c.leases_twice = random.chance(20);
  c.overlapping = random.chance(15);
  c.two_forwards = random.chance(30);
  c.other_order = random.chance(15);
  if (random.chance(20)) c.unused_unit = random.between(0, 4);
  c.skips_gradients = random.chance(30);
  c.asks_twice = random.chance(20);
  c.gradients_only = random.chance(20);
  c.reduces_by_call = random.chance(30);
  c.reshards_by_call = random.chance(10);
  c.reads_gradients = random.chance(25);
  c.sets_values = random.chance(20);
  c.infinite = random.chance(10);
  // The plan has no room for leases that the expected order does not hold together.
  if (c.overlapping) c.options.spare_slot_bytes = 1u << 20;
}

inline Case make_case(std::uint64_t seed, std::uint64_t index) {
  Random random(mix(seed, index));
  Case c;
  c.seed = mix(seed, index, 1);
  c.world = random.between(1, 8);
  c.strategy = static_cast<Strategy>(random.between(0, 5));
  c.precision = static_cast<Precision>(random.between(0, kPrecisions - 1));
#ifdef TESSERA_PROPERTY_SGD_ONLY
  c.rule = Rule::sgd;
#else
  c.rule = static_cast<Rule>(random.between(0, 2));
#endif
  c.rate = random.of({0.01f, 0.1f, 1e-3f});
  c.options.rounding_seed = c.seed;
  c.weight_decay = random.of({0.0f, 0.1f});
  c.initial = static_cast<Initial>(random.between(0, 2));
  add_units(c, random);
  add_options(c, random);
  add_program(c, random);
  c.poison = random.chance(60);
  if (random.chance(20)) c.jitter_us = random.between(1, 50);
  renumber(c);
  return c;
}

}  // namespace property
