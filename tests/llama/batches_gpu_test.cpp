// Batches in pinned memory: sequences in order, targets, and the documents within them.
#include "batches.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "temporary_file.hpp"

using namespace llama_test;

namespace {

constexpr std::size_t kSteps = 40;

llama::Options options_of(bool graph) {
  llama::Options o;
  o.model.vocabulary = 256;
  o.ranks = 2;
  o.batch = 3;
  o.sequence = 11;
  o.accumulate = 2;
  o.graph = graph;
  o.documents = true;
  o.document_token = 10;
  return o;
}

/// Every batch of a run: targets follow tokens, documents are those of the tokens, and there is
/// room for them; returns the most of a batch.
std::size_t check_batches(const llama::Options& o, const llama::TokenFile* file) {
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < o.ranks; ++rank) {
    llama::Batches batches(o, file, rank);
    REQUIRE(batches.documents() >= o.batch);
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (std::size_t micro_step = 0; micro_step < o.accumulate; ++micro_step) {
        const llama::Batches::Batch batch = batches.fill(step, micro_step);
        const std::vector<std::int32_t> tokens(batch.tokens, batch.tokens + o.rows());
        for (std::size_t i = 0; i < o.rows(); ++i) {
          if (i % o.sequence != 0) CHECK(batch.targets[i - 1] == tokens[i]);
        }
        std::vector<std::int32_t> starts(batches.documents() + 1);
        most = std::max(most, llama::write_document_starts(tokens, o.sequence, 10, starts));
        CHECK(std::equal(starts.begin(), starts.end(), batch.documents));
      }
    }
    CHECK(most <= batches.documents());
  }
  return most;
}

}  // namespace

TEST_CASE("batches bring the documents of their tokens, never more than are counted ahead") {
  const TemporaryFile text("text");
  std::string lines;
  for (std::size_t i = 0; i < 60; ++i) lines += std::string(i * i % 13, 'x') + '\n';
  text.write(lines);
  const llama::TokenFile file(text.path(), llama::TokenFormat::bytes);
  for (const bool graph : {false, true}) {
    llama::Options o = options_of(graph);
    CHECK(check_batches(o, &file) > o.batch);
    o.model.vocabulary = 20;
    CHECK(check_batches(o, nullptr) > o.batch);
  }
}

TEST_CASE("without the option batches have no documents") {
  llama::Options o = options_of(false);
  o.documents = false;
  o.document_token.reset();
  llama::Batches batches(o, nullptr, 0);
  CHECK(batches.documents() == 0);
  CHECK(batches.fill(0, 0).documents == nullptr);
}
