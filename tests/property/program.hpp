#pragma once
// What a case's training program does in one step. The sharded ranks and the reference follow the
// same list of actions, and take values and gradients from the same functions.

#include <limits>
#include <vector>

#include "property/cases.hpp"

namespace property {

struct Action {
  enum class Kind {
    forward,
    backward,
    close,  ///< of the latest open lease of the unit
    begin_accumulate,
    end_accumulate,
    reduce,
    begin_evaluate,
    end_evaluate,
    reshard,
  };
  Kind kind = Kind::forward;
  int unit = -1;
  bool gradients_only = false;
  int lease = 0;  ///< number of a backward lease in the step
};

class ProgramWriter {
 public:
  ProgramWriter(const Case& c, int step) : c_(c), step_(step) {}

  std::vector<Action> write() {
    const bool pairs = c_.two_forwards && c_.micro_steps > 1;
    for (int micro = 0; micro < c_.micro_steps; ++micro) {
      if (!pairs || micro % 2 == 0) forward();
      if (pairs && micro % 2 == 0 && micro + 1 < c_.micro_steps) forward();
      if (c_.evaluates && micro == step_ % c_.micro_steps) evaluate();
      const bool last = micro + 1 == c_.micro_steps;
      const bool unreduced = c_.once() && (!last || c_.reduces_by_call);
      if (unreduced) add(Action::Kind::begin_accumulate, -1);
      backward();
      if (unreduced) add(Action::Kind::end_accumulate, -1);
    }
    if (c_.reads_gradients || (c_.once() && c_.reduces_by_call)) add(Action::Kind::reduce, -1);
    return std::move(actions_);
  }

 private:
  using Kind = Action::Kind;

  int count() const { return static_cast<int>(c_.units.size()); }
  bool outer(int u) const { return c_.units[static_cast<std::size_t>(u)].options.outer; }
  bool used(int u) const { return !(u == c_.unused_unit && step_ == 1); }
  bool pick(int u, int salt) const { return mix(c_.seed, u, salt) % 2 == 0; }

  void add(Kind kind, int unit) {
    Action action{kind, unit, false, 0};
    if (kind == Kind::backward) {
      action.gradients_only = c_.gradients_only && pick(unit, 1);
      action.lease = leases_++;
    }
    actions_.push_back(action);
  }

  // Outer units stay leased around the others, as the expected order has it.
  template <class Pass>
  void within_outer(Kind kind, Pass&& pass) {
    for (int u = 0; u < count(); ++u) {
      if (outer(u) && used(u)) add(kind, u);
    }
    pass();
    for (int u = count(); u-- > 0;) {
      if (outer(u) && used(u)) add(Kind::close, u);
    }
  }

  std::vector<int> inner(bool reversed) const {
    std::vector<int> units;
    for (int u = 0; u < count(); ++u) {
      if (!outer(u) && used(u)) units.push_back(u);
    }
    if (reversed != (c_.other_order && step_ == 1)) std::reverse(units.begin(), units.end());
    return units;
  }

  void forward() {
    within_outer(Kind::forward, [&] {
      int open = -1;
      for (int u : inner(false)) {
        add(Kind::forward, u);
        if (open >= 0) add(Kind::close, open);
        open = -1;
        if (c_.overlapping && pick(u, 2)) {
          open = u;
        } else {
          add(Kind::close, u);
        }
        if (c_.leases_twice && pick(u, 3)) {
          add(Kind::forward, u);
          add(Kind::close, u);
        }
      }
      if (open >= 0) add(Kind::close, open);
    });
    if (!c_.reshards_by_call) return;
    for (int u = 0; u < count(); ++u) {
      if (pick(u, 4)) add(Kind::reshard, u);
    }
  }

  void backward() {
    within_outer(Kind::backward, [&] {
      for (int u : inner(true)) {
        add(Kind::backward, u);
        add(Kind::close, u);
      }
    });
  }

  void evaluate() {
    add(Kind::begin_evaluate, -1);
    within_outer(Kind::forward, [&] {
      for (int u : inner(false)) {
        add(Kind::forward, u);
        add(Kind::close, u);
      }
    });
    add(Kind::end_evaluate, -1);
  }

  const Case& c_;
  int step_;
  int leases_ = 0;
  std::vector<Action> actions_;
};

inline std::vector<Action> program(const Case& c, int step) {
  return ProgramWriter(c, step).write();
}

inline float rate_of(const Case& c, int step) {
  return c.new_rate ? c.rate / static_cast<float>(1 + step) : c.rate;
}

/// In [-1, 1), a multiple of 2^-23.
inline float signed_fraction(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
}

inline float initial_value(const Case& c, const TensorSpec& tensor, std::uint64_t index) {
  return signed_fraction(mix(c.seed, tensor.key, index, 5));
}
inline unsigned char initial_byte(const Case& c, const TensorSpec& tensor, std::uint64_t index) {
  return static_cast<unsigned char>(mix(c.seed, tensor.key, index, 6));
}
/// What set_full sets ahead of the second step, for about every other tensor.
inline bool is_set(const Case& c, const TensorSpec& tensor, int step) {
  return c.sets_values && step == 1 && tensor.is_float() && mix(c.seed, tensor.key, 7) % 2 == 0;
}
inline float set_value(const Case& c, const TensorSpec& tensor, std::uint64_t index) {
  return signed_fraction(mix(c.seed, tensor.key, index, 8));
}

/// How often a rank's kernel writes the gradient of a tensor in a lease.
inline int times_asked(const Case& c, int step, int rank, int lease, const TensorSpec& tensor) {
  if (c.skips_gradients && mix(c.seed, step, rank, lease, tensor.key, 9) % 3 == 0) return 0;
  return c.asks_twice && mix(c.seed, step, lease, tensor.key, 10) % 2 == 0 ? 2 : 1;
}

/// A gradient, as a kernel would compute it from its data and the weight it sees: a stale weight
/// shows. A quarter of the weight is exact, so there is one rounding whatever the compiler does.
struct GradientSource {
  GradientSource(const Case& c, int step, int rank, int lease, const TensorSpec& tensor, int time)
      : hash(mix(c.seed, step, rank, lease, tensor.key, time)),
        infinite(c.infinite && step == 1 && rank == c.world - 1) {}

  float at(std::uint64_t index, float weight) const {
    if (infinite && index == 0) return std::numeric_limits<float>::infinity();
    return signed_fraction(mix(hash, index)) + 0.25f * weight;
  }

  std::uint64_t hash;
  bool infinite;
};

}  // namespace property
