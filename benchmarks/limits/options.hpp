#pragma once

#include <string>
#include <vector>

namespace limits {

struct Options {
  std::vector<std::string> only;  ///< groups to measure; empty: all
  std::string json;               ///< file to write; empty: none
  std::string disk = ".";         ///< folder of the disk's test file
  bool help = false;

  bool wants(const std::string& group) const;
};

/// Throws std::invalid_argument, with a sentence, for what it does not know. groups: all there are.
Options parse(int count, char** arguments, const std::vector<std::string>& groups);

}  // namespace limits
