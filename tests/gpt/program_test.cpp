// What the programs do around the training: files that are read and written, and the last line.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>

// The program's sources are in no library: they are compiled here, with a training that does
// nothing.
#ifndef GPT_SOURCE_DIR
#define GPT_SOURCE_DIR "."
#endif
#include "gpt/program.cpp"
#include "gpt/results.cpp"

namespace {

namespace fs = std::filesystem;

int trained = 0;
void train(const gpt::Options&, const gpt::Text&, gpt::Results& results, gpt::Traces&) {
  ++trained;
  results.val_loss = 5;
}

// A folder of its own, gone at the end.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("gpt_program_test_" + std::to_string(::getpid()));
  Folder() { fs::create_directory(path); }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
};

int run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "gpt");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return gpt::run_program(static_cast<int>(pointers.size()), pointers.data(), {"gpt", 0x1p40},
                          train, train);
}

}  // namespace

TEST_CASE("program: what is written is neither what is read nor written twice, by any name") {
  const Folder folder;
  const std::string text(5000, 'x');
  std::ofstream(folder / "data") << text;
  fs::create_symlink(folder / "data", folder / "link");
  const std::string data = folder / "data", aside = folder.path.string() + "/./j";
  trained = 0;
  for (const std::string& same : {data, folder.path.string() + "/./data", folder / "link"}) {
    CHECK(run({"--data", data, "--json", same}) == 1);
    CHECK(run({"--data", data, "--trace", same}) == 1);
    CHECK(run({"--data", same, "--json", data}) == 1);
  }
  CHECK(run({"--data", data, "--json", folder / "j", "--trace", aside}) == 1);
  CHECK(trained == 0);
  std::ifstream again(data);
  CHECK(std::string(std::istreambuf_iterator<char>(again), {}) == text);
  CHECK(run({"--data", data, "--steps", "0", "--json", folder / "j", "--trace", folder / "t"}) ==
        0);
  CHECK(trained == 1);
  CHECK(fs::file_size(folder / "j") > 0);
}
