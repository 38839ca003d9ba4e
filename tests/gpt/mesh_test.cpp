// The GPT trained by the engine on meshes of several axes: the losses are those of one rank.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "gpt/batch.hpp"
#include "gpt/host_platform.hpp"
#include "gpt/options.hpp"
#include "gpt/sampler.hpp"
#include "gpt/sharded_model.hpp"

namespace {

using Backend = gpt::HostPlatform::Backend;
using Shard = tessera::Shard<tessera::Zero3<>, tessera::OnDevice, tessera::Fp32, Backend>;
using tessera::MeshShape;

constexpr std::size_t kSteps = 5;
constexpr std::size_t kMicroSteps = 2;

std::string text() {
  std::string text;
  for (std::size_t i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + (i * i / 7 + i % 11) % 26);
  }
  return text;
}

struct Run {
  std::vector<double> losses;  // of the steps, and of a validation after them
  std::vector<double> norms;
  std::string sample;
};

/// Four sequences a micro-step, whatever the mesh. Checks that all ranks say the same.
Run train(const MeshShape& shape, bool sequence_parallel, float clip) {
  gpt::Options o;
  o.ranks = static_cast<std::size_t>(shape.size());
  o.mesh = shape;
  o.sequence_parallel = sequence_parallel;
  o.batch = 4 * kMicroSteps;
  o.accumulate = kMicroSteps;
  o.model = {.vocabulary = 128, .context = 13, .layers = 2, .heads = 4, .width = 24};
  const std::string all = text();
  Run result;
  std::mutex mutex;
  gpt::HostPlatform::run_ranks(shape.size(), [&](gpt::HostRanks ranks) {
    auto mesh = gpt::HostPlatform::mesh(ranks, shape);
    const gpt::Config part = o.model_part(mesh.place().tensor);
    gpt::HostPlatform::Axis axis(mesh, part, o.sequences(), sequence_parallel);
    gpt::HostPlatform::RankSums sums(mesh.data());
    gpt::Units<float> units;
    Shard shard(
        mesh, tessera::AdamW{.learning_rate = 1e-3f, .weight_decay = 0.1f},
        tessera::Options{.accumulation = tessera::Accumulation::reduce_each, .clip_norm = clip});
    gpt::ShardedModel<gpt::HostPlatform, Shard, float> model(shard, units, axis, part,
                                                             o.sequences(), false, 5);
    const gpt::BatchShare share{o.batch, o.data_ranks(), o.accumulate};
    const auto place = static_cast<std::size_t>(mesh.data().rank());
    gpt::Batch batch(share.sequences(), part.context);
    const auto tokens = static_cast<double>(share.sequences() * part.context);
    Run mine;
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (std::size_t m = 0; m < kMicroSteps; ++m) {
        gpt::sample_batch(all, 3, step, share.first(place, m), batch);
        model.micro_step(batch, static_cast<float>(1 / (tokens * kMicroSteps)));
      }
      mine.norms.push_back(shard.step().get().norm);
      mine.losses.push_back(sums(model.take_loss()).mean());
    }
    {
      auto evaluating = shard.evaluate();
      gpt::sample_batch(all, 4, 0, place * share.sequences(), batch);
      model.loss(batch);
      mine.losses.push_back(sums(model.take_loss()).mean());
      gpt::Batch one(1, part.context);
      mine.sample = gpt::sample_text(
          [&](const gpt::Token* of) {
            std::copy(of, of + part.context, one.tokens.begin());
            return model.logits(one);
          },
          "a", 20, part.context, part.vocabulary, 0.8, 1);
    }
    for (const double loss : mine.losses) {
      for (const double theirs : ranks.exchange(loss)) CHECK(theirs == loss);
    }
    const auto digest = static_cast<double>(shard.parameters_digest() >> 12);
    for (const double theirs : ranks.exchange(digest)) CHECK(theirs == digest);
    const std::lock_guard lock(mutex);
    if (result.losses.empty()) result = mine;
    CHECK(mine.sample == result.sample);
  });
  return result;
}

void compare(const std::vector<MeshShape>& meshes, float clip) {
  const Run one = train({}, false, clip);
  CHECK(one.losses.back() < one.losses.front() - 0.01);  // there is something to compare
  for (const MeshShape& shape : meshes) {
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && shape.tensor == 1) continue;
      CAPTURE(shape.describe());
      CAPTURE(sequence_parallel);
      const Run run = train(shape, sequence_parallel, clip);
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        CHECK(run.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
      }
      for (std::size_t i = 0; i < one.norms.size(); ++i) {
        CHECK(run.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
      }
      CHECK(run.sample.size() == one.sample.size());
    }
  }
}

}  // namespace

TEST_CASE("meshes: losses and norms on every mesh are those of one rank") {
  compare({{1, 1, 2}, {1, 1, 3}, {1, 1, 4}, {1, 2, 2}, {2, 1, 2}, {2, 2, 1}}, 0);
}

TEST_CASE("meshes: clipping scales the gradients of all slices by the norm of the whole model") {
  compare({{1, 1, 3}, {1, 2, 2}, {2, 1, 2}}, 0.05f);
}
