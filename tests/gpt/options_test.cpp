#include "gpt/options.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "gpt/input_error.hpp"
#include "gpt/sampler.hpp"
#include "gpt/schedule.hpp"

namespace {

std::optional<gpt::Options> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "gpt");
  return gpt::parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string refusal(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const gpt::InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("options: defaults and every flag") {
  const gpt::Options o = *parse({});
  CHECK(o.ranks == 4);
  CHECK(o.strategy == gpt::StrategyName::zero3);
  CHECK(o.warmup_steps() == o.steps / 20);

  const gpt::Options all = *parse({"--data",
                                   "f",
                                   "--ranks",
                                   "2",
                                   "--strategy",
                                   "zero3-keep",
                                   "--precision",
                                   "bf16",
                                   "--steps",
                                   "7",
                                   "--batch",
                                   "12",
                                   "--context",
                                   "32",
                                   "--layers",
                                   "3",
                                   "--heads",
                                   "2",
                                   "--width",
                                   "10",
                                   "--accumulate",
                                   "3",
                                   "--recompute",
                                   "--schedule",
                                   "sequential",
                                   "--clip",
                                   "0.5",
                                   "--seed",
                                   "9",
                                   "--lr",
                                   "3e-4",
                                   "--json",
                                   "j",
                                   "--trace",
                                   "t",
                                   "--prefetch-depth",
                                   "3",
                                   "--bucket-bytes",
                                   "4096",
                                   "--accumulation",
                                   "each",
                                   "--warmup",
                                   "2",
                                   "--weight-decay",
                                   "0",
                                   "--sample",
                                   "5"});
  CHECK(all.data == "f");
  CHECK(all.strategy == gpt::StrategyName::zero3_keep);
  CHECK(all.precision == gpt::PrecisionName::bf16);
  CHECK(all.schedule == gpt::ScheduleName::sequential);
  CHECK(all.accumulation == gpt::AccumulationName::each);
  CHECK(all.sequences() == 2);
  CHECK(all.recompute);
  CHECK(all.bucket_bytes == 4096u);
  CHECK(all.learning_rate == 3e-4);
  CHECK(all.warmup_steps() == 2);
}

TEST_CASE("options: what cannot be run is refused in one sentence") {
  const std::vector<std::vector<const char*>> refused = {{"--ranks", "0"},
                                                         {"--ranks", "-3"},
                                                         {"--ranks", "257"},
                                                         {"--steps", "abc"},
                                                         {"--steps", "3.5"},
                                                         {"--steps", "-1"},
                                                         {"--lr", "nan"},
                                                         {"--lr", "inf"},
                                                         {"--lr", "-1"},
                                                         {"--lr", "fast"},
                                                         {"--clip", "nan"},
                                                         {"--clip", "1e-39"},
                                                         {"--clip", "1e-300"},
                                                         {"--data", ""},
                                                         {"--json", ""},
                                                         {"--trace", ""},
                                                         {"--strategy", "zero9"},
                                                         {"--precision", "fp8"},
                                                         {"--schedule", "none"},
                                                         {"--accumulation", "x"},
                                                         {"--heads", "3", "--width", "64"},
                                                         {"--heads", "0"},
                                                         {"--batch", "13"},
                                                         {"--batch", "8", "--accumulate", "3"},
                                                         {"--context", "100000000"},
                                                         {"--context", "1000000"},
                                                         {"--width", "65536", "--layers", "1000"},
                                                         {"--seed", "99999999999999999999"}};
  for (const auto& arguments : refused) {
    const std::string sentence = refusal(arguments);
    CAPTURE(sentence);
    CHECK((sentence.find("must") != std::string::npos ||
           sentence.find("cannot") != std::string::npos));
    CHECK(sentence.find('\n') == std::string::npos);
    CHECK(sentence.back() == '.');
  }
  CHECK(refusal({"--bogus"}) != "");
  CHECK(refusal({"--steps"}) != "");
}

TEST_CASE("options: a mesh names axes in any order, and sets the ranks") {
  using tessera::MeshShape;
  CHECK((parse({"--ranks", "3"})->mesh == MeshShape{.shard = 3}));
  const gpt::Options o = *parse({"--mesh", "tensor=2,replicate=3"});
  CHECK((o.mesh == MeshShape{3, 1, 2}));
  CHECK(o.ranks == 6);
  CHECK(o.data_ranks() == 3);
  CHECK(o.sequences() == 4);
  CHECK_FALSE(o.sequence_parallel);
  CHECK(o.model_part(1).own_vocabulary() == tessera::Share{128, 128});
  const gpt::Options all =
      *parse({"--mesh", "shard=2,tensor=3,replicate=2", "--ranks", "12", "--sequence-parallel"});
  CHECK((all.mesh == MeshShape{2, 2, 3}));
  CHECK(all.sequence_parallel);
  CHECK(parse({"--mesh", "tensor=4", "--batch", "5"})->sequences() == 5);
}

TEST_CASE("options: a mesh that cannot be is refused, and why is said") {
  struct Case {
    std::vector<const char*> arguments;
    const char* why;
  };
  const Case cases[] = {
      {{"--mesh", ""}, "there is no axis ''"},
      {{"--mesh", "pipeline=2"}, "there is no axis 'pipeline'"},
      {{"--mesh", "shard=2,"}, "there is no axis ''"},
      {{"--mesh", ",shard=2"}, "there is no axis ''"},
      {{"--mesh", "2"}, "there is no axis '2'"},
      {{"--mesh", "shard=2,Tensor=2"}, "there is no axis 'Tensor'"},
      {{"--mesh", "shard"}, "whole number"},
      {{"--mesh", "shard="}, "whole number"},
      {{"--mesh", "shard=0"}, "whole number"},
      {{"--mesh", "shard=-1"}, "whole number"},
      {{"--mesh", "shard=2x"}, "whole number"},
      {{"--mesh", "shard=257"}, "whole number"},
      {{"--mesh", "shard=99999999999"}, "whole number"},
      {{"--mesh", "shard=2,shard=2"}, "named twice"},
      {{"--mesh", "shard=32,replicate=32"}, "more than 256"},
      {{"--mesh", "shard=2,tensor=2", "--ranks", "3"}, "they must agree"},
      {{"--mesh", "shard=5,tensor=2"}, "must be a multiple of the ranks with other data"},
      {{"--mesh", "tensor=3", "--heads", "2"}, "no more tensor ranks than --heads 2"},
      {{"--sequence-parallel"}, "tensor=2 or more"},
      {{"--mesh", "shard=2,replicate=2", "--sequence-parallel"}, "tensor=2 or more"}};
  for (const Case& c : cases) {
    const std::string sentence = refusal(c.arguments);
    CAPTURE(sentence);
    CHECK(sentence.find(c.why) != std::string::npos);
    CHECK(sentence.find("must") != std::string::npos);
    CHECK(sentence.find('\n') == std::string::npos);
    CHECK(sentence.back() == '.');
  }
}

TEST_CASE("options: a mesh is of mpirun's processes, and of what the program's kernels compute") {
  const auto refused = [](std::vector<const char*> arguments, const gpt::Machine& machine) {
    arguments.insert(arguments.begin(), "gpt");
    try {
      const auto o =
          gpt::parse_options(static_cast<int>(arguments.size()), arguments.data(), machine);
      return std::to_string(o->ranks);
    } catch (const gpt::InputError& error) {
      return std::string(error.what());
    }
  };
  const gpt::Machine processes{.program = "gpt", .bytes = 0x1p40, .processes = 4};
  CHECK(refused({"--mesh", "shard=2,tensor=2"}, processes) == "4");
  CHECK(refused({}, processes) == "4");
  CHECK(refused({"--mesh", "shard=2"}, processes).find("mpirun started 4 processes") !=
        std::string::npos);
  const gpt::Machine whole{.program = "gpt_cuda", .bytes = 0x1p40, .tensor_axis = false};
  CHECK(refused({"--mesh", "shard=2,replicate=2"}, whole) == "4");
  CHECK(refused({"--mesh", "tensor=2"}, whole).find("must have tensor=1") != std::string::npos);
}

TEST_CASE("the learning rate rises to its peak and ends at a tenth of it") {
  const gpt::CosineSchedule rate{1.0, 10, 100};
  CHECK(rate(0) == doctest::Approx(0.1));
  CHECK(rate(9) == 1.0f);
  CHECK(rate(10) == 1.0f);
  CHECK(rate(99) == doctest::Approx(0.1));
  for (std::size_t step = 11; step < 100; ++step) CHECK(rate(step) < rate(step - 1));
  const gpt::CosineSchedule without{1.0, 0, 3};
  CHECK(without(0) == 1.0f);
  CHECK(without(2) == doctest::Approx(0.1));
  CHECK(gpt::CosineSchedule{1.0, 0, 1}(0) == 1.0f);
  CHECK(gpt::CosineSchedule{1.0, 50, 10}(9) == doctest::Approx(0.2));
}

TEST_CASE("sampling follows the logits") {
  const float logits[] = {0.0f, 1.0f, -50.0f, 0.0f};
  CHECK(gpt::choose(logits, 4, 0.0, 0.9) == 1);
  std::vector<int> counts(4);
  for (int i = 0; i < 4000; ++i) ++counts[gpt::choose(logits, 4, 1.0, i / 4000.0)];
  CHECK(counts[0] == doctest::Approx(4000 / (2 + 2.71828)).epsilon(0.01));
  CHECK(counts[1] == doctest::Approx(4000 * 2.71828 / (2 + 2.71828)).epsilon(0.01));
  CHECK(counts[2] == 0);

  // A model that continues the alphabet, seen through a context of three.
  std::vector<float> out(3 * 256);
  const auto next = [&](const gpt::Token* tokens) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t v = 0; v < 256; ++v) {
        out[i * 256 + v] = v == static_cast<std::size_t>(tokens[i]) + 1 ? 100.0f : 0.0f;
      }
    }
    return out.data();
  };
  CHECK(gpt::sample_text(next, "a", 5, 3, 256, 0.8, 1) == "bcdef");
  CHECK(gpt::printable("a\n\x01z") == "a\n?z");
}
