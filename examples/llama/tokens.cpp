#include "tokens.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "input_error.hpp"

namespace llama {
namespace {

std::size_t width_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::bytes: return 1;
    case TokenFormat::uint16: return 2;
    case TokenFormat::uint32: return 4;
  }
  return 1;
}

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw InputError("cannot train on " + path + ": " + why);
}

}  // namespace

TokenFormat TokenFile::format_of(const std::string& path) {
  if (std::string_view(path).ends_with(".u16")) return TokenFormat::uint16;
  if (std::string_view(path).ends_with(".u32")) return TokenFormat::uint32;
  return TokenFormat::bytes;
}

TokenFile::TokenFile(const std::string& path, TokenFormat format) : path_(path), format_(format) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(path, std::string(std::strerror(errno)) + ".");
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file);
    fail(path, "it is not a file.");
  }
  bytes_ = static_cast<std::size_t>(status.st_size);
  if (bytes_ % width_of(format) != 0) {
    close(file);
    fail(path,
         "its size is not a multiple of a token's " + std::to_string(width_of(format)) + " bytes.");
  }
  size_ = bytes_ / width_of(format);
  if (bytes_ > 0) {
    void* memory = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED) {
      close(file);
      fail(path, std::string(std::strerror(errno)) + ".");
    }
    memory_ = memory;
  }
  close(file);
}

TokenFile::~TokenFile() {
  if (memory_ != nullptr) munmap(const_cast<void*>(memory_), bytes_);
}

std::int32_t TokenFile::operator[](std::size_t index) const {
  switch (format_) {
    case TokenFormat::bytes: return static_cast<const std::uint8_t*>(memory_)[index];
    case TokenFormat::uint16: return static_cast<const std::uint16_t*>(memory_)[index];
    case TokenFormat::uint32:
      return static_cast<std::int32_t>(static_cast<const std::uint32_t*>(memory_)[index]);
  }
  return 0;
}

void TokenFile::check(std::size_t vocabulary, std::size_t sequence) const {
  if (size_ < sequence + 1) {
    fail(path_, "it has " + std::to_string(size_) + " tokens, and a sequence with its targets is " +
                    std::to_string(sequence + 1) + ".");
  }
  for (std::size_t i = 0; i < size_; ++i) {
    const auto token = static_cast<std::uint32_t>((*this)[i]);
    if (token < vocabulary) continue;
    fail(path_, "token " + std::to_string(i) + " is " + std::to_string(token) +
                    ", and the vocabulary has " + std::to_string(vocabulary) + ".");
  }
}

}  // namespace llama
