// Copies between pinned host memory and the device.
#include <cstring>

#include "device.hpp"
#include "groups.hpp"
#include "host_clock.hpp"

namespace limits {
namespace {

constexpr std::size_t bytes = std::size_t{1} << 30;
constexpr int runs = 8;

}  // namespace

void measure_pinned(Report& report) {
  const PinnedMemory host_from(bytes), host_to(bytes);
  const DeviceMemory device_from(bytes), device_to(bytes);
  std::memset(host_from.data(), 1, bytes);
  std::memset(host_to.data(), 2, bytes);
  const Stream up, down;
  const auto to_device = [&] {
    check(cudaMemcpyAsync(device_to.data(), host_from.data(), bytes, cudaMemcpyHostToDevice, up));
  };
  const auto to_host = [&] {
    check(cudaMemcpyAsync(host_to.data(), device_from.data(), bytes, cudaMemcpyDeviceToHost, down));
  };
  const auto both = [&] {
    const double begin = seconds_now();
    for (int i = 0; i < runs; ++i) {
      to_device();
      to_host();
    }
    up.wait();
    down.wait();
    return seconds_now() - begin;
  };
  both();
  report.add("pinned_host_to_device", bytes / milliseconds_each(up, runs, to_device) / 1e6, "GB/s",
             "1 GiB copies");
  report.add("pinned_device_to_host", bytes / milliseconds_each(down, runs, to_host) / 1e6, "GB/s",
             "1 GiB copies");
  report.add("pinned_both", 2.0 * runs * bytes / both() / 1e9, "GB/s",
             "1 GiB copies both ways at once, sum of both");
}

}  // namespace limits
