// Tokens to train on: a memory-mapped file of 16- or 32-bit numbers, or the bytes of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace llama {

enum class TokenFormat : std::uint8_t { bytes, uint16, uint32 };

/// A file of tokens, mapped and never copied. The format is the file's ending (.u16, .u32) unless
/// it is told: anything else is text, a token a byte.
class TokenFile {
 public:
  /// Throws InputError when the file cannot be mapped or is not whole tokens.
  TokenFile(const std::string& path, TokenFormat format);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  static TokenFormat format_of(const std::string& path);

  std::size_t size() const { return size_; }
  std::int32_t operator[](std::size_t index) const;

  /// Throws InputError where a token is not below `vocabulary`, or there are too few for a sequence
  /// and its targets.
  void check(std::size_t vocabulary, std::size_t sequence) const;

 private:
  std::string path_;
  TokenFormat format_;
  const void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t size_ = 0;
};

/// Where training stands in the data: sequence number n begins at token n * length modulo what
/// there is, so that a run of any number of ranks reads the same.
class SequenceOrder {
 public:
  SequenceOrder(std::size_t tokens, std::size_t length) : span_(tokens - length), length_(length) {}
  std::size_t first_token(std::uint64_t sequence) const {
    return static_cast<std::size_t>(sequence * length_ % span_);
  }

 private:
  std::size_t span_;
  std::size_t length_;
};

}  // namespace llama
