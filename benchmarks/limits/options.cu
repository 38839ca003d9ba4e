#include "options.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace limits {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

std::vector<std::string> known_names(const std::string& list,
                                     const std::vector<std::string>& groups) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) {
    if (std::find(groups.begin(), groups.end(), name) == groups.end()) {
      throw std::invalid_argument("--only does not know '" + name + "'; there are " +
                                  joined(groups) + ".");
    }
    names.push_back(name);
  }
  if (names.empty()) throw std::invalid_argument("--only needs at least one name.");
  return names;
}

}  // namespace

bool Options::wants(const std::string& group) const {
  return only.empty() || std::find(only.begin(), only.end(), group) != only.end();
}

Options parse(int count, char** arguments, const std::vector<std::string>& groups) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    if (option == "--help" || option == "-h") {
      options.help = true;
      continue;
    }
    if (option != "--only" && option != "--json" && option != "--disk") {
      throw std::invalid_argument("There is no option '" + option +
                                  "'; --only, --json, --disk and --help are there.");
    }
    if (++i == count || *arguments[i] == '\0') {
      throw std::invalid_argument(option + " needs a value after it.");
    }
    const std::string value = arguments[i];
    if (option == "--only") {
      options.only = known_names(value, groups);
    } else if (option == "--json") {
      options.json = value;
    } else {
      if (!std::filesystem::is_directory(value)) {
        throw std::invalid_argument("--disk needs a folder, and '" + value + "' is none.");
      }
      options.disk = value;
    }
  }
  return options;
}

}  // namespace limits
