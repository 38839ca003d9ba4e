#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

/// Misuse or bad input. what() is one sentence or a few: what was asked, what is wrong with it
/// (names, sizes), and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

/// Appends one part of a message: text, a bool, a character, a number, or a type that has a
/// `to_string` or a `name_of` in its own namespace.
template <class Part>
void append_part(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? "true" : "false";
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_integral_v<Part>) {
    text += std::to_string(part);
  } else if constexpr (std::is_floating_point_v<Part>) {
    // std::to_string prints 1e-9 as 0.000000.
    char digits[32];
    const int length = std::snprintf(digits, sizeof digits, "%.9g", static_cast<double>(part));
    text.append(digits, static_cast<std::size_t>(length));
  } else if constexpr (requires { text += to_string(part); }) {
    text += to_string(part);
  } else {
    text += name_of(part);
  }
}

/// The parts, one after the other, without separators.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

/// Throws Error with the parts concatenated.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(concat(parts...));
}

}  // namespace detail

/// A rank that died, hung or disagreed with the others. The message names the rank, the unit and
/// the collective; an empty name is left out of it.
class CommunicatorError : public Error {
 public:
  /// `rank`: the rank whose call failed, -1 where it is not known; the problem says who is at
  /// fault.
  CommunicatorError(int rank, std::string_view unit, std::string_view collective,
                    std::string_view problem)
      : Error(message(rank, unit, collective, problem)), rank_(rank) {}

  /// The rank whose call failed, -1 where it is not known.
  int rank() const noexcept { return rank_; }

 private:
  static std::string message(int rank, std::string_view unit, std::string_view collective,
                             std::string_view problem) {
    std::string text = rank < 0 ? std::string("an unknown rank") : detail::concat("rank ", rank);
    if (!collective.empty()) text += detail::concat(", ", collective);
    if (!unit.empty()) text += detail::concat(" of unit '", unit, "'");
    return detail::concat(text, ": ", problem);
  }

  int rank_;
};

}  // namespace tessera
