// The file that keeps the products' algorithms: what is taken from it, and what is not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "device_values.hpp"
#include "input_error.hpp"
#include "matmul.hpp"
#include "temporary_file.hpp"

using namespace llama_test;
using llama::Product;

namespace {

const std::vector<llama::Matmuls::Wanted> kWanted = {
    {Product::forward, {96, 136, 72}},
    {Product::input_gradient, {96, 136, 72}},
    {Product::weight_gradient, {96, 136, 72}},
};

/// The lines of choices() that are of times taken now.
std::size_t measured_with(const std::string& file) {
  llama::Matmuls products(cudaStreamPerThread, llama::MatmulElement::bf16);
  products.tune(kWanted, {true, 16, 0.01, file});
  const std::vector<std::string> lines = products.choices();
  CHECK(lines.size() == kWanted.size());
  return static_cast<std::size_t>(std::count_if(
      lines.begin(), lines.end(),
      [](const std::string& line) { return line.find("TFLOP/s") != std::string::npos; }));
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("algorithms are measured once, and read from the file after") {
  const TemporaryFile file("algorithms");
  CHECK(measured_with(file.path()) == 3);
  const std::string written = file.read();
  CHECK(written.starts_with("llama's matrix products: cuBLASLt "));
  CHECK(lines_of(written) == 4);
  CHECK(measured_with(file.path()) == 0);
  CHECK(file.read() == written);

  SUBCASE("one that was cut off: what is whole is taken, the rest is measured") {
    const std::size_t last = written.rfind('\n', written.size() - 2) + 1;
    // In the last line's numbers, in its name, and before its end.
    for (const std::size_t size : {last + 5, written.size() - 3, written.size() - 1}) {
      CAPTURE(size);
      file.write(written.substr(0, size));
      CHECK(measured_with(file.path()) == 1);
      CHECK(lines_of(file.read()) == 4);
      CHECK(file.read().starts_with(written.substr(0, last)));
      CHECK(measured_with(file.path()) == 0);
    }
  }

  SUBCASE("another card's or version's: all are measured, and take their place") {
    const std::string header = written.substr(0, written.find('\n'));
    const std::string rest = written.substr(header.size());
    for (const std::string& other :
         {header + " of another kind", std::string("llama's matrix products: cuBLASLt 1 a card")}) {
      CAPTURE(other);
      file.write(other + rest);
      CHECK(measured_with(file.path()) == 3);
      CHECK(file.read().substr(0, header.size() + 1) == header + '\n');
      CHECK(lines_of(file.read()) == 4);
    }
  }

  SUBCASE("an empty file is filled") {
    file.write("");
    CHECK(measured_with(file.path()) == 3);
    CHECK(lines_of(file.read()) == 4);
  }
}

TEST_CASE("a file that is not of algorithms is refused and stays") {
  const TemporaryFile file("notes");
  for (const std::string text :
       {"notes\nand more\n", "\n", "llama's matrix", "cuBLASLt 1 a card\n"}) {
    CAPTURE(text);
    file.write(text);
    CHECK_THROWS_WITH_AS(
        measured_with(file.path()),
        (file.path() + " is not a file of algorithms: --algorithms would write over it.").c_str(),
        llama::InputError);
    CHECK(file.read() == text);
  }
}
