// The text to train on: a file, or by default this project's own sources and documents.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "input_error.hpp"

namespace gpt {

/// Bytes, of which the last tenth is kept for validation.
class Text {
 public:
  Text(std::string bytes, std::string origin)
      : bytes_(std::move(bytes)), origin_(std::move(origin)) {
    if (bytes_.empty()) throw InputError(origin_ + " is empty: there must be text to train on.");
  }

  std::string_view all() const { return bytes_; }
  std::string_view training() const { return all().substr(0, training_size()); }
  std::string_view validation() const { return all().substr(training_size()); }
  const std::string& origin() const { return origin_; }

  /// Both splits must hold a window: `context` bytes and the one that follows them.
  void require_context(std::size_t context) const {
    const std::size_t shorter = std::min(training().size(), validation().size());
    if (shorter > context) return;
    throw InputError(origin_ + " is too short: of its " + std::to_string(bytes_.size()) +
                     " bytes, the shorter split gets " + std::to_string(shorter) +
                     ", which cannot hold a context of " + std::to_string(context) +
                     " and the byte after it.");
  }

 private:
  std::size_t training_size() const { return bytes_.size() - bytes_.size() / 10; }

  std::string bytes_;
  std::string origin_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw InputError("cannot read " + path.string() + ": " +
                     (error ? error.message() : "it does not exist") + ".");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw InputError("cannot read " + path.string() + ": it is not a regular file.");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError("cannot read " + path.string() + ": it does not open.");
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw InputError("cannot read " + path.string() + ": reading it failed.");
  return bytes;
}

inline Text text_from_file(const std::filesystem::path& path) {
  return Text(read_file(path), path.string());
}

/// The sources and documents under `root`, one after the other in the order of their paths. Only
/// named directories are read: a build tree beside them would change what is trained on.
inline Text text_from_project(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  constexpr std::array directories{"benchmarks", "docs", "examples", "include", "tests"};
  constexpr std::array<std::string_view, 6> extensions{".cpp", ".cu", ".hpp", ".md", ".py", ".sh"};
  const auto is_text = [&](const fs::directory_entry& entry) {
    const std::string extension = entry.path().extension().string();
    return entry.is_regular_file() &&
           std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
  };

  std::vector<std::string> files;
  for (const char* directory : directories) {
    std::error_code missing;
    for (const auto& entry : fs::recursive_directory_iterator(root / directory, missing)) {
      if (is_text(entry)) files.push_back(entry.path().generic_string());
    }
  }
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(root, missing)) {
    if (is_text(entry)) files.push_back(entry.path().generic_string());
  }
  if (files.empty()) {
    throw InputError("no sources found under " + root.string() +
                     ": name a text to train on with --data FILE.");
  }
  std::sort(files.begin(), files.end());
  std::string bytes;
  for (const std::string& file : files) bytes += read_file(file);
  return Text(std::move(bytes), "the project's own text");
}

}  // namespace gpt
