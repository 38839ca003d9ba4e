// Benchmarks of the CUDA backend: kernels as a fraction of the copy bandwidth of the same run, and
// whole steps by policy.
//
//   bench_gpu [--list] [--filter TEXT] [--json FILE]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "harness.hpp"

namespace {

[[noreturn]] void usage(const std::string& problem) {
  std::fprintf(stderr, "error: %s\nusage: bench_gpu [--list] [--filter TEXT] [--json FILE]\n",
               problem.c_str());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  bool list = false;
  std::string filter, json;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--list") {
      list = true;
    } else if (option == "--filter" || option == "--json") {
      if (i + 1 == argc) usage(option + " needs a value");
      (option == "--filter" ? filter : json) = argv[++i];
    } else {
      usage("no option " + option);
    }
  }
  std::vector<bench::Benchmark> all;
  bench::add_primitives(all);
  bench::add_steps(all);
  try {
    bench::Results results;
    int ran = 0;
    for (const bench::Benchmark& benchmark : all) {
      if (benchmark.name.find(filter) == std::string::npos) continue;
      ++ran;
      if (list) {
        std::printf("%s\n", benchmark.name.c_str());
      } else {
        benchmark.run(results);
      }
    }
    if (ran == 0) usage("no benchmark's name contains '" + filter + "'");
    if (list || json.empty()) return 0;
    cudaDeviceProp properties{};
    tessera::detail::check_cuda(cudaGetDeviceProperties(&properties, 0), "the device's name");
    if (!results.write_json(json, properties.name)) usage("cannot write " + json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
