#include "gpt/text.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gpt/batch.hpp"

namespace {

namespace fs = std::filesystem;

std::string numbered(std::size_t n) {
  std::string text(n, '\0');
  for (std::size_t i = 0; i < n; ++i) text[i] = static_cast<char>(i * 7 % 251);
  return text;
}

/// A directory that goes with the test.
struct Scratch {
  fs::path path = fs::temp_directory_path() / ("gpt_text_test_" + std::to_string(::getpid()));
  Scratch() { fs::create_directories(path); }
  ~Scratch() { fs::remove_all(path); }

  fs::path write(const std::string& name, const std::string& content) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << content;
    return path / name;
  }
};

}  // namespace

TEST_CASE("a tenth of the text is kept for validation") {
  const gpt::Text text(numbered(1005), "text");
  CHECK(text.validation().size() == 100);
  CHECK(std::string(text.training()) + std::string(text.validation()) == text.all());
  CHECK_NOTHROW(text.require_context(99));
  CHECK_THROWS_WITH_AS(text.require_context(100), doctest::Contains("cannot hold a context of 100"),
                       gpt::InputError);
}

TEST_CASE("texts that cannot be trained on are refused in a sentence") {
  const Scratch scratch;
  CHECK_THROWS_WITH_AS(gpt::text_from_file(scratch.path / "none"), doctest::Contains("cannot read"),
                       gpt::InputError);
  CHECK_THROWS_WITH_AS(gpt::text_from_file(scratch.path), doctest::Contains("not a regular file"),
                       gpt::InputError);
  CHECK_THROWS_WITH_AS(gpt::text_from_file(scratch.write("empty", "")),
                       doctest::Contains("is empty"), gpt::InputError);
  CHECK_THROWS_WITH_AS(gpt::text_from_project(scratch.path), doctest::Contains("no sources"),
                       gpt::InputError);
}

TEST_CASE("the project's text is its sources in the order of their paths, without build trees") {
  const Scratch scratch;
  scratch.write("include/b.hpp", "b");
  scratch.write("include/a/z.hpp", "z");
  scratch.write("docs/x.md", "x");
  scratch.write("docs/picture.png", "no");
  scratch.write("build/generated.cpp", "no");
  scratch.write("README.md", "R");
  CHECK(gpt::text_from_project(scratch.path).all() == "Rxzb");
}

TEST_CASE("a global batch is the same however many ranks and micro-steps share it") {
  const std::string text = numbered(500);
  constexpr std::size_t kContext = 8;
  const auto sample = [&](std::size_t step, std::size_t first, std::size_t count) {
    gpt::Batch batch(count, kContext);
    gpt::sample_batch(text, 3, step, first, batch);
    return batch.tokens;
  };
  const std::vector<gpt::Token> whole = sample(5, 0, 12);
  for (const auto& share : {gpt::BatchShare{12, 1, 3}, {12, 4, 1}, {12, 2, 3}, {12, 12, 1}}) {
    std::vector<gpt::Token> joined;
    for (std::size_t rank = 0; rank < share.ranks; ++rank) {
      for (std::size_t micro = 0; micro < share.accumulate; ++micro) {
        const auto part = sample(5, share.first(rank, micro), share.sequences());
        joined.insert(joined.end(), part.begin(), part.end());
      }
    }
    CHECK(joined == whole);
  }
  CHECK(sample(6, 0, 12) != whole);
}

TEST_CASE("samples reach both ends of the text, and targets are the bytes after") {
  const std::string text = numbered(20);
  gpt::Batch batch(400, 16);
  gpt::sample_batch(text, 1, 0, 0, batch);
  std::vector<int> starts(4);
  for (std::size_t i = 0; i < batch.sequences(); ++i) {
    const std::size_t start = static_cast<std::size_t>(batch.tokens[i * 16]) / 7;
    REQUIRE(start < starts.size());
    ++starts[start];
    for (std::size_t j = 0; j < 16; ++j) {
      CHECK(batch.targets[i * 16 + j] == static_cast<unsigned char>(text[start + j + 1]));
    }
  }
  for (const int count : starts) CHECK(count > 60);
}

TEST_CASE("windows cover every byte of a text once, over any number of ranks") {
  for (const std::size_t length : {2u, 9u, 64u, 65u, 66u, 100u}) {
    const std::string text = numbered(length);
    for (const std::size_t ranks : {1u, 3u, 4u}) {
      for (const std::size_t sequences : {1u, 2u}) {
        const gpt::Windows windows(text, 8, ranks, sequences);
        std::vector<int> seen(length);
        for (std::size_t round = 0; round < windows.rounds(); ++round) {
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            gpt::Batch batch(sequences, 8);
            windows.fill(round, rank, batch);
            for (std::size_t i = 0; i < batch.targets.size(); ++i) {
              if (batch.targets[i] == gpt::kIgnored) continue;
              const std::size_t window = (round * ranks + rank) * sequences + i / 8;
              const std::size_t target = window * 8 + i % 8 + 1;
              CHECK(batch.targets[i] == static_cast<unsigned char>(text[target]));
              ++seen[target];
            }
          }
        }
        CHECK(seen[0] == 0);
        for (std::size_t i = 1; i < length; ++i) CHECK(seen[i] == 1);
      }
    }
  }
}
