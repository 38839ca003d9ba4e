// The unit of the compile-time budget: the standard library only. Do not change it: the figures of
// budget.json are multiples of what it costs.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

struct Entry {
  std::string name;
  std::vector<float> values;
  std::function<float(float)> transform;
};

}  // namespace

float calibrate(std::unordered_map<std::string, std::unique_ptr<Entry>>& entries) {
  float total = 0.0F;
  for (auto& [name, entry] : entries) {
    std::sort(entry->values.begin(), entry->values.end());
    for (const float value : entry->values) total += entry->transform(value);
  }
  std::thread worker([&total] { total *= 0.5F; });
  worker.join();
  return total;
}
