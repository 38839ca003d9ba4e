// The GPT with its layers shared out over ranks, against the same model on one rank: no engine, the
// parameters are the tests' own.
#include "gpt/tensor_axis.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>
#include <tessera/tessera.hpp>

#include "gpt/transformer.hpp"
#include "numeric.hpp"
#include "parameters.hpp"

namespace {

using gpt::Config;
using gpt::TensorInfo;
using model_tests::micro_step;
using model_tests::Parameters;
using model_tests::Sample;
using numeric::Floats;
using Axis = gpt::TensorAxis<tessera::Host>;
using tessera::bf16;

/// Of a part's element, the place in the whole tensor.
tessera::SlicePlace place_of(const TensorInfo& info) {
  if (!info.sliced) return {};
  return tessera::place_of(
      info.slice,
      tessera::Shape(static_cast<std::int64_t>(info.rows), static_cast<std::int64_t>(info.columns)),
      info.name);
}
std::size_t index_of(const TensorInfo& info, std::size_t i) {
  return info.sliced ? static_cast<std::size_t>(place_of(info).whole_index(i)) : i;
}

float widened(float value) { return value; }
float widened(bf16 value) { return tessera::to_float(value); }

/// f(tensor's number, info of the part, its first element in `part`, in `whole`).
template <class P, class F>
void each_tensor(const Parameters<P>& part, const Parameters<P>& whole, F&& f) {
  std::size_t at = 0, whole_at = 0;
  for (std::size_t t = 0; t < part.tensors.size(); ++t) {
    f(t, part.tensors[t], at, whole_at);
    at += part.tensors[t].size();
    whole_at += whole.tensors[t].size();
  }
}

template <class P>
void fill(Parameters<P>& p) {
  const Floats random = numeric::random_floats(p.values.size(), 11);
  for (std::size_t i = 0; i < p.values.size(); ++i) {
    if constexpr (std::is_same_v<P, float>) {
      p.values[i] = 0.5f * random[i];
    } else {
      p.values[i] = tessera::to_bf16(0.5f * random[i]);
    }
  }
}
template <class P>
void poison(Parameters<P>& p) {
  std::fill(reinterpret_cast<std::uint8_t*>(p.gradients.data()),
            reinterpret_cast<std::uint8_t*>(p.gradients.data() + p.gradients.size()),
            std::uint8_t{0xFF});
}

/// The largest difference of a tensor's gradients, relative to the largest of the whole tensor's.
/// (Those of the keys' biases are zero but for rounding, and lie in a tensor with others.)
template <class P>
double worst(const Parameters<P>& part, const Parameters<P>& whole, std::string& tensor) {
  double worst = 0;
  each_tensor(part, whole,
              [&](std::size_t t, const TensorInfo& info, std::size_t at, std::size_t whole_at) {
                double largest = 1e-30, off = 0;
                for (std::size_t i = 0; i < whole.tensors[t].size(); ++i) {
                  largest =
                      std::max(largest, std::abs(double{widened(whole.gradients[whole_at + i])}));
                }
                for (std::size_t i = 0; i < info.size(); ++i) {
                  const double expected = widened(whole.gradients[whole_at + index_of(info, i)]);
                  const double difference = std::abs(widened(part.gradients[at + i]) - expected);
                  off = std::isnan(difference) ? 1e30 : std::max(off, difference);
                }
                if (off / largest > worst) {
                  worst = off / largest;
                  tensor = info.name;
                }
              });
  return worst;
}

/// Of the tensors that all ranks have, in a double that is compared exactly.
template <class P>
double digest_of_replicated(const Parameters<P>& part) {
  std::uint64_t hash = 1;
  each_tensor(part, part, [&](std::size_t, const TensorInfo& info, std::size_t at, std::size_t) {
    if (info.sliced) return;
    for (std::size_t i = 0; i < info.size(); ++i) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(widened(part.gradients[at + i]))) *
             0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
  });
  return static_cast<double>(hash >> 12);
}

struct Model {
  Config config;
  std::size_t batch;
};
// Uneven over some numbers of ranks: heads, columns, the vocabulary and rows; and fewer rows than
// ranks.
const Model kModels[] = {
    {{.vocabulary = 13, .context = 5, .layers = 2, .heads = 4, .width = 12}, 3},
    {{.vocabulary = 16, .context = 8, .layers = 1, .heads = 4, .width = 32}, 2},
    {{.vocabulary = 7, .context = 3, .layers = 1, .heads = 5, .width = 10}, 1},
};

template <class P>
void compare(const Model& model, int ranks, bool sequence_parallel, bool recompute,
             double loss_tolerance, double tolerance) {
  CAPTURE(ranks);
  CAPTURE(sequence_parallel);
  CAPTURE(recompute);
  const Sample sample(model.config, model.batch);
  Parameters<P> whole(model.config);
  fill(whole);
  poison(whole);
  gpt::Transformer<P> reference(model.config, model.batch, recompute);
  const gpt::LossSum expected = micro_step(model.config, reference, whole, sample);
  Parameters<P> twice(model.config);
  twice.values = whole.values;
  twice.gradients = whole.gradients;
  twice.accumulate(true);
  micro_step(model.config, reference, twice, sample);
  const float* logits = reference.head_logits(whole.head);
  // Of the last sequence: whatever is before it in a longer batch.
  const Floats expected_logits(logits, logits + model.config.context * model.config.vocabulary);

  tessera::run_ranks(ranks, [&](tessera::InProcess communicator) {
    tessera::Mesh<tessera::Host> mesh(communicator, tessera::MeshShape{.tensor = ranks});
    Config config = model.config;
    config.tensor = {communicator.rank(), ranks};
    Axis axis(mesh, config, model.batch, sequence_parallel);
    gpt::Transformer<P, Axis&> split(config, model.batch, recompute, axis);
    Parameters<P> part(config);
    each_tensor(part, whole,
                [&](std::size_t, const TensorInfo& info, std::size_t at, std::size_t whole_at) {
                  for (std::size_t i = 0; i < info.size(); ++i) {
                    part.values[at + i] = whole.values[whole_at + index_of(info, i)];
                  }
                });
    const auto same = [&](double mine) {
      for (const double theirs : communicator.exchange(mine)) CHECK(theirs == mine);
    };
    std::string tensor;
    poison(part);
    gpt::LossSum loss = micro_step(config, split, part, sample);
    CHECK(loss.count == expected.count);
    CHECK(loss.sum == doctest::Approx(expected.sum).epsilon(loss_tolerance));
    same(loss.sum);
    double error = worst(part, whole, tensor);
    CAPTURE(tensor);
    CHECK(error < tolerance);
    same(digest_of_replicated(part));

    part.accumulate(true);
    micro_step(config, split, part, sample);
    error = worst(part, twice, tensor);
    CHECK(error < tolerance);
    same(digest_of_replicated(part));

    CHECK(split.head_loss(part.head, sample.targets.data()).sum == loss.sum);
    const std::size_t vocabulary = config.vocabulary;
    if (model.batch > 1) split.use_batch(1);
    split.embed_forward(part.embedding, sample.tokens.data());
    for (std::size_t i = 0; i < config.layers; ++i) split.block_forward(i, part.blocks[i]);
    const float* got = split.head_logits(part.head);
    double off = 0;
    for (std::size_t i = 0; i < config.context * vocabulary; ++i) {
      off = std::max(off, std::abs(double{got[i]} - expected_logits[i]));
      same(got[i]);
    }
    CHECK(off < 1e-5);
  });
}

}  // namespace

TEST_CASE("tensor axis: losses, logits and every gradient are the unsharded model's in fp32") {
  for (const Model& model : kModels) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const bool sequence_parallel : {false, true}) {
        for (const bool recompute : {false, true}) {
          compare<float>(model, ranks, sequence_parallel, recompute, 1e-6, 1e-5);
        }
      }
    }
  }
}

TEST_CASE("tensor axis: bf16 weights and gradients, which are rounded once on either side") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (const bool sequence_parallel : {false, true}) {
      compare<bf16>(kModels[0], ranks, sequence_parallel, false, 1e-6, 0x1p-7);
    }
  }
}

TEST_CASE("tensor axis: one rank has the bits of the model without an axis") {
  const Model& model = kModels[0];
  const Sample sample(model.config, model.batch);
  Parameters<float> a(model.config), b(model.config);
  fill(a);
  fill(b);
  gpt::Transformer<float> without(model.config, model.batch, false);
  tessera::Mesh<tessera::Host> mesh{tessera::InProcess()};
  Axis axis(mesh, model.config, model.batch, false);
  gpt::Transformer<float, Axis&> with(model.config, model.batch, false, axis);
  CHECK(micro_step(model.config, without, a, sample).sum ==
        micro_step(model.config, with, b, sample).sum);
  CHECK(a.gradients == b.gradients);
  CHECK(with.activation_bytes() == without.activation_bytes());
}

TEST_CASE("tensor axis: sequence parallelism keeps fewer activations on a rank") {
  const Model model{{.vocabulary = 16, .context = 32, .layers = 6, .heads = 4, .width = 64}, 4};
  std::size_t bytes[2] = {};
  for (const bool shared : {false, true}) {
    tessera::run_ranks(4, [&](tessera::InProcess communicator) {
      tessera::Mesh<tessera::Host> mesh(communicator, tessera::MeshShape{.tensor = 4});
      Config config = model.config;
      config.tensor = {communicator.rank(), 4};
      Axis axis(mesh, config, model.batch, shared);
      gpt::Transformer<float, Axis&> split(config, model.batch, false, axis);
      if (communicator.rank() == 0) bytes[shared ? 1 : 0] = split.activation_bytes();
    });
  }
  CHECK(static_cast<double>(bytes[1]) < 0.6 * static_cast<double>(bytes[0]));
}
