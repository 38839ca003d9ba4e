// The limits of one machine with one GPU, to judge other measurements against.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -Xcompiler -fopenmp,-march=native,-fno-math-errno
//     benchmarks/limits/*.cu -o limits -lcublas -lcublasLt   (all on one line)
//   ./limits --json limits.json
#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <sstream>

#include "device.hpp"
#include "groups.hpp"
#include "options.hpp"

namespace limits {
namespace {

struct Group {
  const char* name;
  const char* what;
  std::function<void(Report&, const Options&)> measure;
};

template <void (*measure)(Report&)>
void on_its_own(Report& report, const Options&) {
  measure(report);
}

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"gemm_1b", "bf16 matrix products at the shapes of a 1B Llama-3 model",
       on_its_own<measure_gemm_1b>},
      {"gemm_3b", "of a 3B model", on_its_own<measure_gemm_3b>},
      {"gemm_8b", "of an 8B model", on_its_own<measure_gemm_8b>},
      {"fp8", "fp8 matrix products", on_its_own<measure_fp8>},
      {"hbm", "bandwidth of the device's memory", on_its_own<measure_hbm>},
      {"launch", "launches of kernels and graphs, events", on_its_own<measure_launch>},
      {"pinned", "copies between host and device", on_its_own<measure_pinned>},
      {"adamw", "AdamW on the host's threads", on_its_own<measure_adamw>},
      {"disk", "reads and writes of a disk",
       [](Report& report, const Options& options) { measure_disk(report, options.disk); }},
  };
  return all;
}

void print_help() {
  std::printf(
      "usage: limits [--only NAME,NAME] [--json FILE] [--disk FOLDER]\n\n"
      "  --only   measures these groups only:\n");
  for (const Group& group : groups()) std::printf("             %-8s %s\n", group.name, group.what);
  std::printf(
      "  --json   writes what was measured\n"
      "  --disk   folder of the disk's test file of 4 GiB (default: the current one)\n");
}

/// Of the kernel module, as 580.159.04; else the CUDA version that it supports.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.size() > 3) return word;
  }
  int version = 0;
  check(cudaDriverGetVersion(&version));
  return text("CUDA %d.%d", version / 1000, version % 1000 / 10);
}

int run(const Options& options) {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  const std::string driver = driver_version();
  Report report(device.name, driver, options.json);
  std::printf("%s, driver %s\n", device.name, driver.c_str());
  bool complete = true;
  for (const Group& group : groups()) {
    if (!options.wants(group.name)) continue;
    try {
      group.measure(report, options);
    } catch (const std::exception& error) {
      report.add_failure(group.name, error.what());
      complete = false;
    }
    report.write();
  }
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace limits

int main(int count, char** arguments) {
  std::vector<std::string> names;
  for (const limits::Group& group : limits::groups()) names.push_back(group.name);
  try {
    const limits::Options options = limits::parse(count, arguments, names);
    if (options.help) {
      limits::print_help();
      return 0;
    }
    return limits::run(options);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "limits: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "limits: %s.\n", error.what());
    return 1;
  }
}
