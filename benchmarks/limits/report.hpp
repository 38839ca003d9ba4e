#pragma once

#include <string>
#include <vector>

namespace limits {

/// What was measured on one machine: printed a line at a time, kept as JSON.
class Report {
 public:
  /// With an empty json_file nothing is written. Fails at once if the file cannot be.
  Report(std::string device, std::string driver, std::string json_file);

  /// Prints one line and keeps it.
  void add(const std::string& name, double value, const std::string& unit,
           const std::string& detail);

  /// A group of measurements that could not be made, and why.
  void add_failure(const std::string& group, const std::string& reason);

  /// Writes the JSON file anew with everything so far.
  void write() const;

 private:
  struct Measurement {
    std::string name;
    double value;
    std::string unit, detail;
  };
  struct Failure {
    std::string group, reason;
  };

  std::string device_, driver_, json_file_;
  std::vector<Measurement> measurements_;
  std::vector<Failure> failures_;
};

/// Text by the rules of printf.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

}  // namespace limits
