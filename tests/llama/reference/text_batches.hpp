// The bytes of a text as tokens, in the order in which every trainer of the comparison takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llama_reference {

class TextBatches {
 public:
  TextBatches(std::string bytes, std::size_t batch, std::size_t seq)
      : bytes_(std::move(bytes)), batch_(batch), seq_(seq) {
    if (batch == 0 || seq == 0) throw std::invalid_argument("an empty batch");
    if (bytes_.size() <= seq) throw std::invalid_argument("the text is shorter than a sequence");
  }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::uint32_t largest_token() const {
    std::uint32_t largest = 0;
    for (const char byte : bytes_) largest = token(byte) > largest ? token(byte) : largest;
    return largest;
  }

  std::vector<std::uint32_t> tokens(std::size_t step) const { return shifted(step, 0); }
  /// Each token's successor.
  std::vector<std::uint32_t> targets(std::size_t step) const { return shifted(step, 1); }

 private:
  static std::uint32_t token(char byte) { return static_cast<unsigned char>(byte); }

  std::vector<std::uint32_t> shifted(std::size_t step, std::size_t shift) const {
    std::vector<std::uint32_t> result;
    result.reserve(batch_ * seq_);
    for (std::size_t b = 0; b < batch_; ++b) {
      const std::size_t first = (step * batch_ + b) * seq_ % (bytes_.size() - seq_);
      for (std::size_t t = 0; t < seq_; ++t) result.push_back(token(bytes_[first + shift + t]));
    }
    return result;
  }

  std::string bytes_;
  std::size_t batch_;
  std::size_t seq_;
};

}  // namespace llama_reference
