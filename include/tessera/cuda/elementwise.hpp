// Element-wise functions on the device: the function objects of exact/elementwise.hpp, four
// elements a thread at a time, or eight where all arrays are of 16 bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tessera/backend/ranges.hpp"
#include "tessera/cuda/launch.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/elementwise.hpp"

namespace tessera::detail {

/// f over n elements. Any alignment of the arrays; the fast path wants that of as many elements as
/// it loads at once.
template <class F, class... Refs>
TESSERA_CUDA_LAUNCHER void launch_elementwise(cudaStream_t stream, std::uint64_t n, const F& f,
                                              Refs... refs);

/// f.prepare(setting) over each of `count` ranges, which lie in device memory and hold `blocks`
/// blocks of kRangeBlock; nothing if f.enabled() is false when the stream gets there.
template <class F, class... Refs>
TESSERA_CUDA_LAUNCHER void launch_ranges(cudaStream_t stream, const ElementRange* ranges,
                                         std::uint32_t count, std::uint64_t blocks, const F& f,
                                         Refs... refs);

#if defined(__CUDACC__)

/// Bytes of an argument's element: of the wider array where it has two.
template <class Ref>
inline constexpr std::size_t kElementBytes = sizeof(typename Ref::element);
template <>
inline constexpr std::size_t kElementBytes<InOutSplit> = sizeof(bf16);
template <int field>
inline constexpr std::size_t kElementBytes<InOutStochastic<field>> = sizeof(bf16);

/// Elements a thread loads from each array at once: 16 bytes of the widest.
template <class... Refs>
inline constexpr int kVector = (... && (kElementBytes<Refs> <= 2)) ? 8 : 4;

/// One argument of a function: N elements of its array, in registers.
template <class Ref, int N>
struct VectorSlot;

/// What the first four fields of stochastic rounding take their bits from, by element: one hash for
/// all arguments, whose keys are the same. Left to the compiler, each would make its own.
template <int N>
struct RandomWords {
  std::uint64_t x[N];
};
template <class Ref>
__device__ RoundingKey key_in(const Ref&, const RoundingKey& otherwise) {
  return otherwise;
}
template <int field>
__device__ RoundingKey key_in(const InOutStochastic<field>& ref, const RoundingKey&) {
  return ref.key;
}

template <class T, int N>
struct alignas(sizeof(T) * N) PackedVector {
  T x[N];
};

template <class T, int N>
struct VectorAccess {
  using Packed = PackedVector<T, N>;
  static __device__ void load(const T* from, Lanes<1> (&lanes)[N]) {
    const Packed packed = *reinterpret_cast<const Packed*>(from);
#pragma unroll
    for (int k = 0; k < N; ++k) lanes[k] = Lanes<1>::load(&packed.x[k]);
  }
  static __device__ void store(T* to, const Lanes<1> (&lanes)[N]) {
    Packed packed;
#pragma unroll
    for (int k = 0; k < N; ++k) lanes[k].store(&packed.x[k]);
    *reinterpret_cast<Packed*>(to) = packed;
  }
  static bool aligned(const T* data) {
    return reinterpret_cast<std::uintptr_t>(data) % sizeof(Packed) == 0;
  }
};

template <int N, class Ref>
bool is_aligned(const Ref& ref) {
  using Element = std::remove_const_t<std::remove_pointer_t<decltype(ref.data)>>;
  return VectorAccess<Element, N>::aligned(ref.data);
}
template <int N>
bool is_aligned(const InOutSplit& ref) {
  return VectorAccess<bf16, N>::aligned(ref.high) &&
         VectorAccess<std::uint16_t, N>::aligned(ref.low);
}

template <class T, int N>
struct VectorSlot<In<T>, N> {
  In<T> ref;
  Lanes<1> lanes[N];
  __device__ void load(std::uint64_t i) { VectorAccess<T, N>::load(ref.data + i, lanes); }
  __device__ void load_one(std::uint64_t i) { lanes[0] = Lanes<1>::load(ref.data + i); }
  __device__ const Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t, const RandomWords<N>&) const {}
  __device__ void store_one(std::uint64_t) const {}
};
template <class T, int N>
struct VectorSlot<InOut<T>, N> {
  InOut<T> ref;
  Lanes<1> lanes[N];
  __device__ void load(std::uint64_t i) { VectorAccess<T, N>::load(ref.data + i, lanes); }
  __device__ void load_one(std::uint64_t i) { lanes[0] = Lanes<1>::load(ref.data + i); }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords<N>&) const {
    VectorAccess<T, N>::store(ref.data + i, lanes);
  }
  __device__ void store_one(std::uint64_t i) const { lanes[0].store(ref.data + i); }
};
template <class T, int N>
struct VectorSlot<Out<T>, N> {
  Out<T> ref;
  Lanes<1> lanes[N];
  __device__ void load(std::uint64_t) {
#pragma unroll
    for (int k = 0; k < N; ++k) lanes[k] = Lanes<1>::splat(0.0f);
  }
  __device__ void load_one(std::uint64_t) { lanes[0] = Lanes<1>::splat(0.0f); }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords<N>&) const {
    VectorAccess<T, N>::store(ref.data + i, lanes);
  }
  __device__ void store_one(std::uint64_t i) const { lanes[0].store(ref.data + i); }
};

template <int N>
struct VectorSlot<InOutSplit, N> {
  InOutSplit ref;
  Lanes<1> lanes[N];
  __device__ void load(std::uint64_t i) {
    const auto high = *reinterpret_cast<const PackedVector<bf16, N>*>(ref.high + i);
    const auto low = *reinterpret_cast<const PackedVector<std::uint16_t, N>*>(ref.low + i);
#pragma unroll
    for (int k = 0; k < N; ++k) lanes[k] = {join_float(high.x[k], low.x[k])};
  }
  __device__ void load_one(std::uint64_t i) { lanes[0] = {join_float(ref.high[i], ref.low[i])}; }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords<N>&) const {
    PackedVector<bf16, N> high;
    PackedVector<std::uint16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const SplitFloat halves = split_float(lanes[k].x);
      high.x[k] = halves.high;
      low.x[k] = halves.low;
    }
    *reinterpret_cast<PackedVector<bf16, N>*>(ref.high + i) = high;
    *reinterpret_cast<PackedVector<std::uint16_t, N>*>(ref.low + i) = low;
  }
  __device__ void store_one(std::uint64_t i) const { store_lanes(ref, i, lanes[0]); }
};
template <int field, int N>
struct VectorSlot<InOutStochastic<field>, N> {
  InOutStochastic<field> ref;
  Lanes<1> lanes[N];
  __device__ void load(std::uint64_t i) { VectorAccess<bf16, N>::load(ref.data + i, lanes); }
  __device__ void load_one(std::uint64_t i) { lanes[0] = Lanes<1>::load(ref.data + i); }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords<N>& words) const {
    PackedVector<bf16, N> packed;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      std::uint64_t word = words.x[k];
      if constexpr (field >= 4) word = ref.key.template word<field>(i + static_cast<unsigned>(k));
      packed.x[k] = to_bf16_stochastic(lanes[k].x, RoundingKey::bits_in<field>(word));
    }
    *reinterpret_cast<PackedVector<bf16, N>*>(ref.data + i) = packed;
  }
  __device__ void store_one(std::uint64_t i) const { store_lanes(ref, i, lanes[0]); }
};

template <int N, class F, class... Slots>
__device__ void apply_vector(const F& f, std::uint64_t i, Slots... slots) {
  (slots.load(i), ...);
#pragma unroll
  for (int k = 0; k < N; ++k) f(slots.argument(k)...);
  RandomWords<N> words{};
  if constexpr ((... || kRoundsAtRandom<decltype(slots.ref)>)) {
    RoundingKey key;
    ((key = key_in(slots.ref, key)), ...);
#pragma unroll
    for (int k = 0; k < N; ++k) words.x[k] = key.word<0>(i + static_cast<unsigned>(k));
  }
  (slots.store(i, words), ...);
}
template <class F, class... Slots>
__device__ void apply_one(const F& f, std::uint64_t i, Slots... slots) {
  (slots.load_one(i), ...);
  f(slots.argument(0)...);
  (slots.store_one(i), ...);
}

/// The elements [begin, end) by the threads of one block; at most kRangeBlock of them.
template <bool aligned, class F, class... Refs>
__device__ void apply_block(const F& f, std::uint64_t begin, std::uint64_t end, Refs... refs) {
  constexpr int N = kVector<Refs...>;
  if constexpr (aligned) {
    const std::uint64_t whole = begin + (end - begin) / N * N;
    for (std::uint64_t i = begin + threadIdx.x * N; i < whole; i += kCudaThreads * N) {
      apply_vector<N>(f, i, VectorSlot<Refs, N>{refs, {}}...);
    }
    begin = whole;
  }
  for (std::uint64_t i = begin + threadIdx.x; i < end; i += kCudaThreads) {
    apply_one(f, i, VectorSlot<Refs, N>{refs, {}}...);
  }
}

template <bool aligned, class F, class... Refs>
__global__ void __launch_bounds__(kCudaThreads)
    elementwise_kernel(std::uint64_t n, F f, Refs... refs) {
  const std::uint64_t begin = blockIdx.x * kRangeBlock;
  const std::uint64_t end = begin + kRangeBlock < n ? begin + kRangeBlock : n;
  apply_block<aligned>(f, begin, end, refs...);
}

template <class F, class... Refs>
void launch_elementwise(cudaStream_t stream, std::uint64_t n, const F& f, Refs... refs) {
  const std::uint64_t blocks = (n + kRangeBlock - 1) / kRangeBlock;
  const bool aligned = (... && is_aligned<kVector<Refs...>>(refs));
  launch_cuda(
      "an element-wise kernel", stream, blocks, kCudaThreads,
      aligned ? elementwise_kernel<true, F, Refs...> : elementwise_kernel<false, F, Refs...>, n, f,
      refs...);
}

template <class F, class... Refs>
__global__ void __launch_bounds__(kCudaThreads)
    ranges_kernel(const ElementRange* ranges, std::uint32_t count, F f, Refs... refs) {
  if (!f.enabled()) return;
  // The last range that begins at or before this block.
  std::uint32_t low = 0;
  for (std::uint32_t high = count; high - low > 1;) {
    const std::uint32_t middle = (low + high) / 2;
    (ranges[middle].first_block <= blockIdx.x ? low : high) = middle;
  }
  const ElementRange range = ranges[low];
  const std::uint64_t begin = (blockIdx.x - range.first_block) * kRangeBlock;
  const std::uint64_t end = begin + kRangeBlock < range.count ? begin + kRangeBlock : range.count;
  const RoundingKey key = rounding_key_of<Refs...>(f, range);
  apply_block<true>(f.prepare(range.setting), range.begin + begin, range.begin + end,
                    keyed(refs, key)...);
}

template <class F, class... Refs>
void launch_ranges(cudaStream_t stream, const ElementRange* ranges, std::uint32_t count,
                   std::uint64_t blocks, const F& f, Refs... refs) {
  launch_cuda("an element-wise kernel over ranges", stream, blocks, kCudaThreads,
              ranges_kernel<F, Refs...>, ranges, count, f, refs...);
}

#endif

}  // namespace tessera::detail
