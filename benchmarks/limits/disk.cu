// A disk under 8 threads of 16 MiB requests that pass by the page cache.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "groups.hpp"
#include "host_clock.hpp"

namespace limits {
namespace {

constexpr std::size_t request = std::size_t{16} << 20;
constexpr int threads = 8;
constexpr int requests_each = 32;
constexpr std::size_t total = request * threads * requests_each;
static_assert(total == std::size_t{4} << 30);

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::strerror(error));
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::uint64_t, Free>;

/// Random, so that nothing on the way compresses it.
Buffer random_buffer(std::uint64_t seed) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, request) != 0) throw std::bad_alloc();
  Buffer buffer(static_cast<std::uint64_t*>(memory));
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t i = 0; i < request / sizeof x; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    buffer.get()[i] = x;
  }
  return buffer;
}

/// A file without a name, gone with its descriptor.
class TestFile {
 public:
  explicit TestFile(const std::string& folder) {
    struct statvfs space;
    if (statvfs(folder.c_str(), &space) != 0) fail(folder, errno);
    if (space.f_bavail * space.f_frsize < total + total / 8) {
      throw std::runtime_error(folder + " has less than 4.5 GiB free");
    }
    open(folder, O_DIRECT);
    if (!direct_) open(folder, 0);
  }
  ~TestFile() { close(descriptor_); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;

  bool direct() const { return direct_; }

  /// Moves one whole request. Returns 0 or the error.
  int move(bool write, char* data, std::size_t offset) const {
    for (std::size_t done = 0; done < request;) {
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t moved = write ? pwrite(descriptor_, data + done, request - done, at)
                                  : pread(descriptor_, data + done, request - done, at);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return moved < 0 ? errno : EIO;
      done += static_cast<std::size_t>(moved);
    }
    return 0;
  }

  void flush() const {
    if (fsync(descriptor_) != 0) fail("fsync", errno);
    if (!direct_) posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  /// Some file systems open with O_DIRECT and refuse it later, so a request is tried.
  void open(const std::string& folder, int flag) {
    std::string name = folder + "/limits-XXXXXX";
    descriptor_ = mkostemp(name.data(), flag);
    if (descriptor_ < 0) {
      if (flag != 0 && errno == EINVAL) return;
      fail("no file can be made in " + folder, errno);
    }
    unlink(name.c_str());
    const Buffer buffer = random_buffer(0);
    const int error = move(true, reinterpret_cast<char*>(buffer.get()), 0);
    direct_ = flag != 0 && error == 0;
    if (error == 0) {
      flush();
      if (ftruncate(descriptor_, 0) != 0) fail("ftruncate", errno);
      return;
    }
    close(descriptor_);
    descriptor_ = -1;
    if (flag == 0 || error != EINVAL) fail("a file in " + folder + " cannot be written", error);
  }

  int descriptor_ = -1;
  bool direct_ = false;
};

enum class Mode { write, read, half };

/// GB/s of one pass: every thread goes through its part of the file. In the half-and-half mode it
/// reads every second request and writes it back a request later, as an optimizer on disk would.
double pass(const TestFile& file, const std::vector<Buffer>& buffers, Mode mode) {
  std::atomic<int> error = 0;
  const double begin = seconds_now();
  {
    std::vector<std::jthread> workers;
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        char* const data = reinterpret_cast<char*>(buffers[static_cast<std::size_t>(t)].get());
        for (int i = 0; i < requests_each && error == 0; ++i) {
          const bool write = mode == Mode::write || (mode == Mode::half && i % 2 == 1);
          const int place = mode == Mode::half ? i - i % 2 : i;
          const auto offset = static_cast<std::size_t>(t * requests_each + place) * request;
          if (const int failed = file.move(write, data, offset)) error = failed;
        }
      });
    }
  }
  if (mode != Mode::read) file.flush();
  if (error != 0) fail("the disk's test file", error);
  return static_cast<double>(total) / (seconds_now() - begin) / 1e9;
}

}  // namespace

void measure_disk(Report& report, const std::string& folder) {
  const TestFile file(folder);
  std::vector<Buffer> buffers;
  for (int t = 0; t < threads; ++t) buffers.push_back(random_buffer(static_cast<unsigned>(t) + 1));
  const std::string how = text("%s, 8 threads, 16 MiB requests, 4 GiB in all",
                               file.direct() ? "O_DIRECT" : "buffered: O_DIRECT is refused there");
  const auto measure = [&](const char* name, Mode mode, const char* what) {
    report.add(name, pass(file, buffers, mode), "GB/s", what + how);
  };
  measure("disk_write_new", Mode::write, "a new file; ");
  measure("disk_read", Mode::read, "");
  measure("disk_write", Mode::write, "over what is there; ");
  measure("disk_half", Mode::half, "half read, half written, sum of both; ");
}

}  // namespace limits
