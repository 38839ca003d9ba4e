// What training adds to the model: first values, the order of the text, clipping, AdamW.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/adamw.hpp"
#include "reference/differences.hpp"
#include "reference/parameters.hpp"
#include "reference/text_batches.hpp"
#include "tessera/optimizer/adamw.hpp"

using llama_reference::Shape;
using llama_reference::Tokens;

TEST_CASE("llama reference: AdamW is the library's, within rounding") {
  constexpr std::size_t kSize = 64;
  for (const bool decays : {false, true}) {
    const llama_reference::AdamWOptions options;
    llama_reference::AdamWState state(kSize, decays);
    std::vector<float> weights(kSize, 0.5f);

    const tessera::AdamW library{.learning_rate = options.learning_rate,
                                 .beta1 = options.beta1,
                                 .beta2 = options.beta2,
                                 .epsilon = options.epsilon,
                                 .weight_decay = options.weight_decay};
    tessera::AdamW::Clock clock;
    std::vector<tessera::Lanes<1>> w(kSize, tessera::Lanes<1>{0.5f});
    std::vector<tessera::Lanes<1>> m(kSize, tessera::Lanes<1>{0.0f});
    std::vector<tessera::Lanes<1>> v(kSize, tessera::Lanes<1>{0.0f});

    for (int step = 1; step <= 20; ++step) {
      std::vector<float> gradient(kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        gradient[i] = tessera::random_normal(1, static_cast<std::uint64_t>(step), i);
      }
      state.update(options, step, 0.25f, gradient.data(), weights.data());
      library.advance(clock);
      const auto coefficients =
          library.coefficients(clock, options.learning_rate, decays ? options.weight_decay : 0.0f);
      for (std::size_t i = 0; i < kSize; ++i) {
        tessera::AdamW::apply(coefficients, w[i], tessera::Lanes<1>{gradient[i] * 0.25f}, m[i],
                              v[i]);
      }
    }
    for (std::size_t i = 0; i < kSize; ++i) CHECK(std::abs(weights[i] - w[i].x) < 1e-6f);
  }
}

TEST_CASE("llama reference: clipping") {
  const std::vector<std::vector<float>> gradients{{3.0f}, {0.0f, 4.0f}};
  CHECK(llama_reference::global_norm(gradients) == doctest::Approx(5.0));
  CHECK(llama_reference::clip_factor(5.0, 1.0f) == doctest::Approx(1.0 / (5.0 + 1e-6)));
  CHECK(llama_reference::clip_factor(0.5, 1.0f) == 1.0f);
  CHECK(llama_reference::clip_factor(5.0, 0.0f) == 1.0f);
}

TEST_CASE("llama reference: sequences follow each other through the text and begin again") {
  const llama_reference::TextBatches text("abcdefghij", 2, 3);  // begins at n * 3 mod 7
  CHECK(text.tokens(0) == Tokens{'a', 'b', 'c', 'd', 'e', 'f'});
  CHECK(text.targets(0) == Tokens{'b', 'c', 'd', 'e', 'f', 'g'});
  CHECK(text.tokens(1) == Tokens{'g', 'h', 'i', 'c', 'd', 'e'});
  CHECK(text.targets(1) == Tokens{'h', 'i', 'j', 'd', 'e', 'f'});
  CHECK(text.largest_token() == 'j');
}

TEST_CASE("llama reference: parameters are in order, and begin as they should") {
  const Shape shape{2, 24, 40, 6, 2, 37, false};
  const auto all = llama_reference::parameters_of(shape);
  REQUIRE(all.size() == 15);
  CHECK(all[0].name == "tok_embeddings");
  CHECK(all[8].name == "layers.1.wqkv");
  CHECK(all[8].rows == 40);
  CHECK(all[13].name == "norm");
  CHECK(all[14].name == "output");
  CHECK(llama_reference::parameters_of({2, 24, 40, 6, 2, 37, true}).size() == 14);

  const auto ones = llama_reference::first_values<float>(all[7], 9, 7);
  CHECK(std::all_of(ones.begin(), ones.end(), [](float value) { return value == 1.0f; }));
  const auto normal = llama_reference::first_values<float>(all[8], 9, 8);
  CHECK(normal[11] == 0.02f * tessera::random_normal(9, 8, 11));
  const auto head = llama_reference::first_values<double>(all[14], 9, 14);
  CHECK(head[5] == doctest::Approx(tessera::random_normal(9, 14, 5) / std::sqrt(24.0)));
}
