#include "report.hpp"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace limits {
namespace {

std::string quoted(const std::string& plain) {
  std::string json = "\"";
  for (const char c : plain) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      json += text("\\u%04x", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  return json + "\"";
}

std::string number(double value) { return std::isfinite(value) ? text("%.6g", value) : "null"; }

}  // namespace

std::string text(const char* format, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

Report::Report(std::string device, std::string driver, std::string json_file)
    : device_(std::move(device)), driver_(std::move(driver)), json_file_(std::move(json_file)) {
  write();
}

void Report::add(const std::string& name, double value, const std::string& unit,
                 const std::string& detail) {
  std::printf("%-32s %10.5g %-9s %s\n", name.c_str(), value, unit.c_str(), detail.c_str());
  std::fflush(stdout);
  measurements_.push_back({name, value, unit, detail});
}

void Report::add_failure(const std::string& group, const std::string& reason) {
  std::printf("%-32s not measured: %s\n", group.c_str(), reason.c_str());
  std::fflush(stdout);
  failures_.push_back({group, reason});
}

void Report::write() const {
  if (json_file_.empty()) return;
  std::ofstream file(json_file_);
  file << "{\n  \"device\": " << quoted(device_) << ",\n  \"driver\": " << quoted(driver_)
       << ",\n  \"measurements\": [";
  const char* separator = "\n";
  for (const Measurement& m : measurements_) {
    file << separator << "    {\"name\": " << quoted(m.name) << ", \"value\": " << number(m.value)
         << ", \"unit\": " << quoted(m.unit) << ", \"detail\": " << quoted(m.detail) << "}";
    separator = ",\n";
  }
  file << "\n  ],\n  \"not_measured\": [";
  separator = "\n";
  for (const Failure& f : failures_) {
    file << separator << "    {\"name\": " << quoted(f.group)
         << ", \"reason\": " << quoted(f.reason) << "}";
    separator = ",\n";
  }
  file << (failures_.empty() ? "]\n}\n" : "\n  ]\n}\n");
  file.flush();
  if (!file) throw std::runtime_error("the file " + json_file_ + " of --json cannot be written");
}

}  // namespace limits
