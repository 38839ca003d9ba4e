#include <cstdio>
#include <string>

#include "harness.hpp"

namespace bench {

bool Results::write_json(const std::string& path, const std::string& device) const {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  std::fprintf(file, "{\"device\": \"%s\", \"measurements\": [", device.c_str());
  const char* separator = "\n";
  for (const Measurement& m : all_) {
    std::fprintf(file,
                 "%s  {\"benchmark\": \"%s\", \"what\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}",
                 separator, m.benchmark.c_str(), m.what.c_str(), m.value, m.unit.c_str());
    separator = ",\n";
  }
  std::fprintf(file, "\n]}\n");
  return std::fclose(file) == 0;
}

}  // namespace bench
