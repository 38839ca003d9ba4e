#include "gpt/attention.hpp"

#include <doctest/doctest.h>

#include <cstddef>

#include "numeric.hpp"
#include "reference.hpp"

namespace {

using numeric::derivative;
using numeric::Doubles;
using numeric::error;
using numeric::Floats;
using numeric::poison;
using numeric::random_floats;
using numeric::widen;

Doubles plain(gpt::AttentionShape s, const Doubles& qkv) {
  return reference::attention(qkv, s.batch, s.context, s.heads, s.width);
}

struct Run {
  Floats out, dqkv;
};

Run run(gpt::AttentionShape s, const Floats& qkv, const Floats& dout) {
  Run result{poison(dout.size()), poison(qkv.size())};
  Floats probabilities = poison(s.probabilities());
  Floats scratch = poison(gpt::attention_scratch(s));
  gpt::attention_forward(s, qkv.data(), probabilities.data(), result.out.data());
  gpt::attention_backward(s, dout.data(), qkv.data(), probabilities.data(), scratch.data(),
                          result.dqkv.data());
  return result;
}

}  // namespace

TEST_CASE("attention: output and gradients, for lengths that no vector divides") {
  for (const gpt::AttentionShape s : {gpt::AttentionShape{2, 7, 2, 6},
                                      {1, 1, 1, 4},
                                      {1, 17, 1, 3},
                                      {2, 16, 4, 8},
                                      {1, 70, 1, 2}}) {
    CAPTURE(s.context);
    const std::size_t rows = s.batch * s.context;
    const Floats qkv = random_floats(rows * s.packed(), 1);
    const Floats dout = random_floats(rows * s.width, 2);
    const Run got = run(s, qkv, dout);
    CHECK(error(got.out, plain(s, widen(qkv))) < 2e-5);
    const auto loss = [&](const Doubles& at) { return numeric::dot(plain(s, at), dout); };
    CHECK(error(got.dqkv, derivative(loss, widen(qkv))) < 2e-5);
  }
}

TEST_CASE("attention over several blocks of queries, the last one short") {
  const gpt::AttentionShape s{1, 2 * gpt::kQueryBlock + 5, 2, 8};
  const std::size_t rows = s.batch * s.context;
  const Floats qkv = random_floats(rows * s.packed(), 3);
  const Floats dout = random_floats(rows * s.width, 4);
  const Run got = run(s, qkv, dout);
  CHECK(error(got.out, plain(s, widen(qkv))) < 2e-5);

  // All of its derivatives would take long: those along some directions instead.
  for (std::uint32_t seed = 5; seed < 25; ++seed) {
    const Doubles direction = widen(random_floats(qkv.size(), seed));
    const auto along = [&](const Doubles& step) {
      Doubles moved = widen(qkv);
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step[0] * direction[i];
      return numeric::dot(plain(s, moved), dout);
    };
    const double expected = derivative(along, {0.0})[0];
    CHECK(numeric::dot(direction, got.dqkv) == doctest::Approx(expected).epsilon(1e-4));
  }
}

TEST_CASE("attention does not look ahead") {
  const gpt::AttentionShape s{1, 9, 1, 4};
  Floats qkv = random_floats(s.context * s.packed(), 1);
  const Floats dout = random_floats(s.context * s.width, 2);
  const Floats before = run(s, qkv, dout).out;
  for (std::size_t i = 6 * s.packed(); i < qkv.size(); ++i) qkv[i] += 3.0f;
  const Floats after = run(s, qkv, dout).out;
  for (std::size_t i = 0; i < 6 * s.width; ++i) CHECK(before[i] == after[i]);
  CHECK(before.back() != after.back());
}
