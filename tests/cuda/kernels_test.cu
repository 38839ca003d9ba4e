// The backend's kernels give the bits of the host's, at any size and alignment.
#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "device_memory.hpp"

using namespace cuda_test;

namespace {

const std::size_t kSizes[] = {1, 3, 4, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 12288, 100003};

struct Blend {
  float factor;
  TESSERA_EXEC_CHECK_DISABLE
  template <class R>
  TESSERA_HD void operator()(R& rounded, R& sum, const R& a, const R& b) const {
    sum = sqrt(abs(sum)) + a * R::splat(factor) / b;
    rounded = sum;
  }
};

/// The same with its constant in memory, and a switch.
struct BlendOf {
  const float* factors;
  const int* enabled_at;
  TESSERA_HD bool enabled() const { return *enabled_at != 0; }
  TESSERA_HD Blend prepare(std::uint32_t setting) const { return {factors[setting]}; }
};

struct Squares {
  std::uint64_t* out;
  TESSERA_HD void operator()(std::uint64_t i) const { out[i] = i * i; }
};

ts::CudaStream& compute(ts::CudaRuntime& runtime) {
  return runtime.stream(ts::StreamKind::compute);
}

}  // namespace

TEST_CASE("transform: bits of the host, aligned or not") {
  ts::CudaRuntime runtime;
  for (std::size_t n : kSizes) {
    for (std::size_t shift : {0u, 1u}) {
      const std::vector<float> a = values(1, n, true), b = values(2, n), s = values(3, n);
      std::vector<float> sum = s;
      std::vector<ts::bf16> out(n);
      ts::elementwise(n, Blend{0.75f}, ts::Out<ts::bf16>{out.data()}, ts::InOut<float>{sum.data()},
                      ts::In<float>{a.data()}, ts::In<float>{b.data()});
      const OnDevice<float> da(a, shift), db(b), ds(s);
      const OnDevice<ts::bf16> dout(std::vector<ts::bf16>(n), shift);
      runtime.transform(compute(runtime), n, Blend{0.75f}, ts::Out<ts::bf16>{dout.data()},
                        ts::InOut<float>{ds.data()}, ts::In<float>{da.data()},
                        ts::In<float>{db.data()});
      CHECK(different_bits(ds.host(), sum) == 0);
      std::size_t rounding = 0;
      const std::vector<ts::bf16> got = dout.host();
      for (std::size_t i = 0; i < n; ++i) rounding += got[i] == out[i] ? 0 : 1;
      CHECK(rounding == 0);
    }
  }
}

TEST_CASE("transform_ranges: each range with its setting; the gaps stay; nothing when disabled") {
  ts::CudaRuntime runtime;
  const std::size_t n = 40000;
  std::vector<ts::ElementRange> ranges;
  std::uint32_t blocks = 0;
  for (std::uint64_t begin = 64, k = 0; begin + 9000 < n; begin += 9024, ++k) {
    const std::uint64_t count = k == 1 ? 1 : 8000 + 37 * k;
    ranges.push_back({begin, count, static_cast<std::uint32_t>(k % 3), blocks});
    blocks += ts::range_blocks(count);
  }
  const std::vector<float> factors = {0.5f, -1.25f, 3.0f};
  const std::vector<float> a = values(4, n), b = values(5, n), s = values(6, n);
  for (int enabled : {1, 0}) {
    ts::HostRuntime host;
    std::vector<float> sum = s;
    std::vector<ts::bf16> out(n, ts::to_bf16(7.0f));
    host.transform_ranges(host.stream(ts::StreamKind::compute), ranges, nullptr,
                          BlendOf{factors.data(), &enabled}, ts::Out<ts::bf16>{out.data()},
                          ts::InOut<float>{sum.data()}, ts::In<float>{a.data()},
                          ts::In<float>{b.data()});
    const OnDevice<float> da(a), db(b), ds(s), df(factors);
    const OnDevice<ts::bf16> dout(std::vector<ts::bf16>(n, ts::to_bf16(7.0f)));
    const OnDevice<ts::ElementRange> resident(ranges);
    const OnDevice<int> flag({enabled});
    runtime.transform_ranges(compute(runtime), ranges, resident.data(),
                             BlendOf{df.data(), flag.data()}, ts::Out<ts::bf16>{dout.data()},
                             ts::InOut<float>{ds.data()}, ts::In<float>{da.data()},
                             ts::In<float>{db.data()});
    CHECK(different_bits(ds.host(), sum) == 0);
    CHECK(dout.host() == out);
    CHECK((sum == s) == (enabled == 0));
  }
}

TEST_CASE("for_each: every index once") {
  ts::CudaRuntime runtime;
  for (std::size_t n : {0u, 1u, 2u, 64u, 65u, 1000u}) {
    const OnDevice<std::uint64_t> out(std::vector<std::uint64_t>(n + 1, 5));
    runtime.for_each(compute(runtime), n, Squares{out.data()});
    std::vector<std::uint64_t> wanted(n + 1, 5);
    for (std::size_t i = 0; i < n; ++i) wanted[i] = i * i;
    CHECK(out.host() == wanted);
  }
}

TEST_CASE("norm_nodes: bits of the host for ranges at any cell, of any size, with inf and NaN") {
  ts::CudaRuntime runtime;
  ts::HostRuntime host;
  struct Place {
    std::uint64_t first_cell, elements;
  };
  const Place places[] = {{0, 1},        {0, 64},         {0, 64 * 256},        {3, 64 * 5 + 17},
                          {255, 64 * 2}, {256, 64 * 256}, {200, 64 * 700 + 1},  {1, 64 * 255},
                          {511, 1},      {77, 64 * 5000}, {0, 64 * 256 * 9 + 3}};
  for (const bool wild : {false, true}) {
    for (ts::NormKind kind : {ts::NormKind::l2, ts::NormKind::l1, ts::NormKind::inf}) {
      std::vector<ts::NormRange> ranges, resident;
      std::vector<std::vector<float>> data;
      std::deque<OnDevice<float>> on_device;
      std::uint64_t nodes = 0, windows = 0;
      for (const Place& place : places) {
        const std::uint64_t cells = ts::cells_of(place.elements);
        nodes +=
            static_cast<std::uint64_t>(ts::node_count(place.first_cell, place.first_cell + cells));
        windows += ts::windows_of(place.first_cell, place.first_cell + cells,
                                  ts::CudaRuntime::norm_window);
      }
      std::vector<double> expected(nodes);
      const OnDevice<double> out(std::vector<double>(nodes, -1.0));
      const OnDevice<double> partials(std::vector<double>(windows, -1.0));
      std::uint64_t node = 0, window = 0;
      for (const Place& place : places) {
        data.push_back(values(10 + data.size(), place.elements, wild));
        on_device.emplace_back(data.back());
        const std::uint64_t last = place.first_cell + ts::cells_of(place.elements);
        ranges.push_back({data.back().data(), place.first_cell, place.elements,
                          expected.data() + node, nullptr, window});
        resident.push_back({on_device.back().data(), place.first_cell, place.elements,
                            out.data() + node, partials.data() + window, window});
        node += static_cast<std::uint64_t>(ts::node_count(place.first_cell, last));
        window += ts::windows_of(place.first_cell, last, ts::CudaRuntime::norm_window);
      }
      for (std::size_t i = 0; i < data.size(); ++i) ranges[i].data = data[i].data();
      host.norm_nodes(host.stream(ts::StreamKind::compute), kind, ranges, nullptr);
      const OnDevice<ts::NormRange> table(resident);
      for (int time = 0; time < 2; ++time) {  // partials are overwritten: a second time is the same
        runtime.norm_nodes(compute(runtime), kind, resident, table.data());
        CHECK(different_bits(out.host(), expected) == 0);
      }
      // The same in bf16.
      std::vector<std::vector<ts::bf16>> halves;
      std::deque<OnDevice<ts::bf16>> halves_on_device;
      for (std::size_t i = 0; i < data.size(); ++i) {
        halves.push_back(rounded(data[i]));
        halves_on_device.emplace_back(halves.back());
        ranges[i].data = halves.back().data();
        resident[i].data = halves_on_device.back().data();
        ranges[i].dtype = resident[i].dtype = ts::DType::bf16;
      }
      host.norm_nodes(host.stream(ts::StreamKind::compute), kind, ranges, nullptr);
      const OnDevice<ts::NormRange> half_table(resident);
      runtime.norm_nodes(compute(runtime), kind, resident, half_table.data());
      CHECK(different_bits(out.host(), expected) == 0);
    }
  }
}

TEST_CASE("sums in rank order: bits of the host, in both types, scaled and accumulated") {
  ts::CudaRuntime runtime;
  for (std::size_t n : kSizes) {
    for (int ranks : {1, 2, 3, 8, 64}) {
      if (ranks == 64 && n > 5000) continue;
      const bool accumulate = n % 2 == 1;
      std::vector<std::vector<float>> sources;
      std::vector<std::vector<ts::bf16>> halves;
      std::deque<OnDevice<float>> device_sources;
      std::deque<OnDevice<ts::bf16>> device_halves;
      std::vector<const float*> at, device_at;
      std::vector<const ts::bf16*> half_at, device_half_at;
      for (int r = 0; r < ranks; ++r) {
        sources.push_back(values(20 + static_cast<std::uint64_t>(r), n, true));
        halves.push_back(rounded(sources.back()));
        device_sources.emplace_back(sources.back(), r == 1 ? 1 : 0);
        device_halves.emplace_back(halves.back());
      }
      for (int r = 0; r < ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        at.push_back(sources[i].data());
        half_at.push_back(halves[i].data());
        device_at.push_back(device_sources[i].data());
        device_half_at.push_back(device_halves[i].data());
      }
      std::vector<float> out = values(9, n), half_out = out;
      const OnDevice<float> device_out(out), device_half_out(out);
      std::vector<ts::bf16> to_half = rounded(out);
      const OnDevice<ts::bf16> device_to_half(to_half, n % 3 == 0 ? 1 : 0);
      ts::rank_sum(n, half_at.data(), ranks, 0.3f, accumulate, to_half.data());
      ts::detail::launch_rank_sum(compute(runtime).handle, n, device_half_at.data(), ranks, 0.3f,
                                  accumulate, device_to_half.data());
      CHECK(different_bits(device_to_half.host(), to_half) == 0);
      ts::rank_sum(n, at.data(), ranks, 0.3f, accumulate, out.data());
      ts::rank_sum(n, half_at.data(), ranks, 0.3f, accumulate, half_out.data());
      ts::detail::launch_rank_sum(compute(runtime).handle, n, device_at.data(), ranks, 0.3f,
                                  accumulate, device_out.data());
      ts::detail::launch_rank_sum(compute(runtime).handle, n, device_half_at.data(), ranks, 0.3f,
                                  accumulate, device_half_out.data());
      CHECK(different_bits(device_out.host(), out) == 0);
      CHECK(different_bits(device_half_out.host(), half_out) == 0);
    }
  }
}
