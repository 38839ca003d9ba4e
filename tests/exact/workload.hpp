#pragma once
// One digest over everything in exact/ and optimizer/ that promises the same bits in every build.
// In an unnamed namespace: programs link two copies that were compiled with different flags.

#include <cstdint>
#include <utility>
#include <vector>

#include <tessera/exact/bf16.hpp>
#include <tessera/exact/cell_sum.hpp>
#include <tessera/exact/digest.hpp>
#include <tessera/exact/elementwise.hpp>
#include <tessera/exact/random.hpp>
#include <tessera/exact/rank_sum.hpp>
#include <tessera/optimizer/adamw.hpp>
#include <tessera/optimizer/lion.hpp>
#include <tessera/optimizer/sgd.hpp>

namespace {

using Floats = std::vector<float>;

constexpr std::uint64_t kElements = 5003;  // no multiple of any width

float value_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// Bit patterns of a wide range: every one of the 2^32, denormals, infinities and NaN among them,
/// where `wild`; else magnitudes from 2^-40 to 2^20.
Floats make_values(std::uint64_t stream, bool wild) {
  Floats values(kElements);
  for (std::uint64_t i = 0; i != kElements; ++i) {
    const std::uint64_t random = tessera::random_bits(2024, stream, i);
    auto bits = static_cast<std::uint32_t>(random);
    if (!wild) {
      bits = (bits & 0x807fffffu) | static_cast<std::uint32_t>(87 + (random >> 32) % 60) << 23;
    } else if (random >> 56 < 64) {
      bits &= 0x807fffffu;  // a denormal or a zero
    }
    values[i] = value_of(bits);
  }
  return values;
}

template <class O>
struct Apply {
  typename O::Coefficients coefficients;
  TESSERA_EXEC_CHECK_DISABLE
  template <class R, class... States>
  TESSERA_HD void operator()(R& w, const R& g, States&... states) const {
    O::apply(coefficients, w, g, states...);
  }
};

template <class O, std::size_t... I>
void add_optimizer(tessera::Digest& digest, const O& optimizer, bool wild,
                   std::index_sequence<I...>) {
  Floats weights = make_values(1, wild);
  Floats states[O::state_count];
  for (Floats& state : states) state.assign(kElements, 0.0f);
  typename O::Clock clock;
  for (std::uint64_t step = 0; step != 5; ++step) {
    const Floats gradient = make_values(10 + step, wild);
    optimizer.advance(clock);
    const Apply<O> apply{
        optimizer.coefficients(clock, optimizer.learning_rate, optimizer.weight_decay)};
    tessera::elementwise(kElements, apply, tessera::InOut<float>{weights.data()},
                         tessera::In<float>{gradient.data()},
                         tessera::InOut<float>{states[I].data()}...);
  }
  digest.update(weights.data(), kElements);
  for (const Floats& state : states) digest.update(state.data(), kElements);
}

template <class O>
void add_optimizer(tessera::Digest& digest, const O& optimizer, bool wild) {
  add_optimizer(digest, optimizer, wild, std::make_index_sequence<std::size_t{O::state_count}>());
}

/// Operations that no optimizer has, and those that a compiler likes to rewrite.
struct Identities {
  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  TESSERA_HD void operator()(const R& a, const R& b, R& out) const {
    const R zero = R::splat(0.0f);
    const R odd = (a - a) + (a * zero) + (a / a) + (a + zero) + (zero - a) + (-a);
    const R fused = a * b + a * a - b * b;
    const R regrouped = ((a + b) - a) - b;
    const R bounds = max(a, b) - min(abs(a), -b) * sign(b);
    out = select(less(odd, fused), odd + regrouped, fused - bounds) / sqrt(abs(b));
  }
};

void add_elementwise(tessera::Digest& digest, bool wild) {
  const Floats a = make_values(20, wild);
  const Floats b = make_values(21, wild);
  Floats out(kElements);
  tessera::elementwise(kElements, Identities{}, tessera::In<float>{a.data()},
                       tessera::In<float>{b.data()}, tessera::Out<float>{out.data()});
  digest.update(out.data(), kElements);
  std::vector<tessera::bf16> halves(kElements);
  tessera::elementwise(
      kElements, [](const auto& x, auto& half) { half = x * x; }, tessera::In<float>{a.data()},
      tessera::Out<tessera::bf16>{halves.data()});
  digest.update(halves.data(), kElements);
  for (std::uint64_t i = 0; i != kElements; ++i) halves[i] = tessera::to_bf16(b[i]);
  digest.update(halves.data(), kElements);
  const tessera::bf16* const sources[] = {halves.data(), halves.data(), halves.data()};
  tessera::rank_sum(kElements, sources, 3, value_of(0x3eaaaaabu), true, out.data());
  digest.update(out.data(), kElements);
  const float* const floats[] = {a.data(), b.data(), out.data()};
  tessera::rank_sum(kElements, floats, 3, value_of(0x3e4ccccdu), false, out.data());
  digest.update(out.data(), kElements);
}

void add_bytes(tessera::Digest& digest, double value) {
  unsigned char bytes[sizeof value];
  __builtin_memcpy(bytes, &value, sizeof value);
  digest.update(bytes, sizeof value);
}

void add_sums(tessera::Digest& digest, bool wild) {
  using tessera::NormKind;
  Floats values = make_values(30, wild);
  for (const bool finite : {false, true}) {
    if (finite) {  // without what overshadows the rest: infinities and NaN
      for (float& value : values) {
        if (!tessera::detail::is_finite(value)) value = 0.0f;
      }
    }
    for (const NormKind kind : {NormKind::l2, NormKind::l1, NormKind::inf}) {
      std::vector<tessera::NodeValue> nodes;
      double out[64];
      const std::uint64_t cells = tessera::cells_of(kElements);
      tessera::node_values(kind, values.data(), 0, kElements, out);
      const double* next = out;
      tessera::for_each_node(0, cells, [&](const tessera::TreeNode& node) {
        nodes.push_back({node, *next++});
      });
      for (const tessera::NodeValue& node : nodes) add_bytes(digest, node.value);
      add_bytes(digest, tessera::combine(kind, cells, nodes));
    }
  }
}

void add_random(tessera::Digest& digest) {
  Floats values(kElements);
  for (std::uint64_t i = 0; i != kElements; ++i) values[i] = tessera::random_normal(5, 1, i);
  digest.update(values.data(), kElements);
  for (std::uint64_t i = 0; i != kElements; ++i) values[i] = tessera::random_uniform(5, 2, i);
  digest.update(values.data(), kElements);
}

std::uint64_t workload_digest() {
  tessera::Digest digest;
  for (const bool wild : {false, true}) {
    add_optimizer(digest, tessera::AdamW{.weight_decay = 0.1f}, wild);
    add_optimizer(digest, tessera::Lion{.weight_decay = 0.1f}, wild);
    add_optimizer(digest, tessera::Sgd{.momentum = 0.9f, .weight_decay = 0.1f}, wild);
    add_optimizer(digest, tessera::Sgd{.momentum = 0.9f, .nesterov = true}, wild);
    add_elementwise(digest, wild);
    add_sums(digest, wild);
  }
  add_random(digest);
  return digest.value();
}

}  // namespace
