// What the tests of Nccl share: memory, streams, and collectives against arithmetic on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/exact/bf16.hpp>
#include <tessera/exact/rank_sum.hpp>
#include <tessera/nccl.hpp>

namespace nccl_test {

namespace ts = tessera;
using ts::CollectiveKind;
using ts::DType;
using ts::Nccl;
using ts::NcclOptions;

inline constexpr ts::CollectiveTag kGather{CollectiveKind::all_gather, "u"};
inline constexpr ts::CollectiveTag kReduce{CollectiveKind::reduce_scatter, "u"};
inline constexpr ts::CollectiveTag kBroadcast{CollectiveKind::broadcast, "u"};

inline int device_count() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

// Whether there are as many devices; says so where there are not.
inline bool have_devices(int needed) {
  const int devices = device_count();
  if (devices >= needed) return true;
  std::printf("skipped: needs %d CUDA device(s), there are %d\n", needed, devices);
  return false;
}

inline void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) ts::detail::fail(what, ": ", cudaGetErrorString(error));
}

// One allocation a thread, from which its tests take what they need: to allocate or free while a
// peer of the same process waits inside a kernel can stop both.
class Arena {
 public:
  static Arena& mine() {
    thread_local Arena arena;
    return arena;
  }
  std::byte* take(std::size_t bytes) {
    if (!base_) must(cudaMalloc(&base_, kBytes), "cudaMalloc");
    std::byte* const at = base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > kBytes) ts::detail::fail("the arena of the tests is too small");
    ++live_;
    return at;
  }
  void give_back() {
    if (--live_ == 0) used_ = 0;
  }
  ~Arena() { cudaFree(base_); }

 private:
  static constexpr std::size_t kBytes = std::size_t{512} << 20;
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  int live_ = 0;
};

// Device memory that holds a vector's elements.
template <class T>
class Device {
 public:
  explicit Device(const std::vector<T>& values)
      : data_(reinterpret_cast<T*>(Arena::mine().take(values.size() * sizeof(T)))),
        count_(values.size()) {
    must(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
    must(cudaStreamSynchronize(cudaStreamLegacy), "upload");
  }
  Device(std::size_t count, T value) : Device(std::vector<T>(count, value)) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { Arena::mine().give_back(); }

  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    must(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  T* data_;
  std::size_t count_;
};

struct Stream : ts::CudaStream {
  explicit Stream(int on) {
    device = on;
    must(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() {
    if (handle != cudaStreamPerThread) cudaStreamDestroy(handle);
  }
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const ts::Error& error) {
    return error.what();
  }
  return "";
}

// Values whose sum depends on the order in which they are added.
inline float value(int rank, std::size_t index) {
  std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761u +
                    static_cast<std::uint32_t>(rank) * 40503u + 12345u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  const float magnitude = (x & 3u) == 0 ? 1000.0f : (x & 3u) == 1 ? 1e-3f : 1.0f;
  return (static_cast<float>(x >> 8) / 8388608.0f - 1.0f) * magnitude;
}
inline float from_float(float x, float) { return x; }
inline ts::bf16 from_float(float x, ts::bf16) { return ts::to_bf16(x); }

template <class T>
std::vector<T> gradients(int rank, std::size_t count, std::size_t first = 0) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = from_float(value(rank, first + i), T{});
  return all;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// What rank `rank` of `size` has to end up with, on the host.
template <class T, class O>
std::vector<O> expected_sum(int rank, int size, std::size_t elements, std::size_t stride,
                            float scale, bool accumulate, std::vector<O> out) {
  std::vector<std::vector<T>> all;
  std::vector<const T*> sources;
  for (int r = 0; r < size; ++r) {
    all.push_back(gradients<T>(r, elements, stride * static_cast<std::size_t>(rank)));
    sources.push_back(all.back().data());
  }
  ts::rank_sum(elements, sources.data(), size, scale, accumulate, out.data());
  return out;
}

// Segments in one call, one of each shape, and one kept in T, against the host.
template <class T>
void check_reduce(Nccl& ranks, Stream& stream, DType dtype, std::size_t elements) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const std::size_t strides[] = {elements, elements + 64};
  for (const bool accumulate : {false, true}) {
    for (const float scale : {1.0f, 1.0f / 3.0f}) {
      Device<std::byte> scratch(size * (elements + 64) * 3 * sizeof(T), std::byte{0xff});
      const Device<T> close(gradients<T>(ranks.rank(), strides[0] * size));
      const Device<T> apart(gradients<T>(ranks.rank(), strides[1] * size));
      const std::vector<float> before(elements, 0.7f);
      const Device<float> sum0(before), sum1(before);
      const std::vector<T> kept_before(elements, from_float(0.5f, T{}));
      const Device<T> kept(kept_before);
      const ts::ReduceSegment segments[] = {
          {close.get(), dtype, sum0.get(), elements, strides[0], scale, accumulate},
          {nullptr, dtype, nullptr, 0, 0, scale, accumulate},
          {apart.get(), dtype, sum1.get(), elements, strides[1], scale, accumulate},
          {close.get(), dtype, kept.get(), elements, strides[0], scale, accumulate, dtype}};
      ranks.reduce_scatter(stream, kReduce, segments, scratch.get());
      ranks.synchronize(stream, kReduce);
      CHECK(same_bits(sum0.values(), expected_sum<T>(ranks.rank(), ranks.size(), elements,
                                                     strides[0], scale, accumulate, before)));
      CHECK(same_bits(kept.values(), expected_sum<T>(ranks.rank(), ranks.size(), elements,
                                                     strides[0], scale, accumulate, kept_before)));
      CHECK(same_bits(sum1.values(), expected_sum<T>(ranks.rank(), ranks.size(), elements,
                                                     strides[1], scale, accumulate, before)));
    }
  }
}

// Four segments in one call: in place, apart, contiguous but not in place, empty.
inline void check_gather(Nccl& ranks, Stream& stream) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto rank = static_cast<std::size_t>(ranks.rank());
  const std::size_t n = 1000, stride = 1024;
  const auto element = [](std::size_t r, std::size_t i) {
    return static_cast<int>(r * 100000 + i);
  };
  std::vector<int> mine(n), place(size * n, -1);
  for (std::size_t i = 0; i < n; ++i) place[rank * n + i] = mine[i] = element(rank, i);
  const Device<int> in_place(place), piece(mine), full(size * n, -1), apart(size * stride, -7);
  const ts::GatherSegment segments[] = {{in_place.get() + rank * n, in_place.get(), n * 4, n * 4},
                                        {piece.get(), apart.get(), n * 4, stride * 4},
                                        {nullptr, nullptr, 0, 0},
                                        {piece.get(), full.get(), n * 4, n * 4}};
  ranks.all_gather(stream, kGather, segments);
  ranks.synchronize(stream, kGather);
  const std::vector<int> a = in_place.values(), b = apart.values(), c = full.values();
  bool right = true;
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      right = right && a[r * n + i] == element(r, i) && b[r * stride + i] == element(r, i) &&
              c[r * n + i] == element(r, i);
    }
    for (std::size_t i = n; i < stride; ++i) right = right && b[r * stride + i] == -7;
  }
  CHECK(right);
}

// How NCCL is to be given a stream that means another one on another thread.
struct PerThread : Stream {
  explicit PerThread(int on) : Stream(on) {
    cudaStreamDestroy(handle);
    handle = cudaStreamPerThread;
  }
};

inline void check_all(Nccl& ranks, Stream& stream) {
  check_gather(ranks, stream);
  check_reduce<float>(ranks, stream, DType::f32, 64 * 33);
  check_reduce<ts::bf16>(ranks, stream, DType::bf16, 64 * 33);
  check_reduce<float>(ranks, stream, DType::f32, 1 << 16);
  for (int root = 0; root < ranks.size(); ++root) {
    const Device<int> data(300, ranks.rank() == root ? 40 + root : -1);
    ranks.broadcast(stream, kBroadcast, data.get(), 1200, root);
    ranks.synchronize(stream, kBroadcast);
    CHECK(data.values() == std::vector<int>(300, 40 + root));
  }
}

}  // namespace nccl_test
