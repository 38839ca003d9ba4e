// Element-wise functions on the device: the function objects of exact/elementwise.hpp, four
// elements a thread at a time, with 16-byte accesses to fp32 and 8-byte ones to halves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "tessera/backend/ranges.hpp"
#include "tessera/cuda/launch.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/elementwise.hpp"

namespace tessera::detail {

/// f over n elements. Any alignment of the arrays; the fast path wants 16 bytes for fp32, 8 for
/// bf16.
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

/// Elements a thread loads from an array at once.
inline constexpr int kVector = 4;

/// One argument of a function: four elements of its array, in registers.
template <class Ref>
struct VectorSlot;

/// What the first four fields of stochastic rounding take their bits from, by element: one hash for
/// all arguments, whose keys are the same. Left to the compiler, each would make its own.
struct RandomWords {
  std::uint64_t x[kVector];
};
template <class Ref>
__device__ RoundingKey key_in(const Ref&, const RoundingKey& otherwise) {
  return otherwise;
}
template <int field>
__device__ RoundingKey key_in(const InOutStochastic<field>& ref, const RoundingKey&) {
  return ref.key;
}

template <class T>
struct alignas(sizeof(T) * kVector) PackedVector {
  T x[kVector];
};

template <class T>
struct VectorAccess {
  using Packed = PackedVector<T>;
  static __device__ void load(const T* from, Lanes<1> (&lanes)[kVector]) {
    const Packed packed = *reinterpret_cast<const Packed*>(from);
#pragma unroll
    for (int k = 0; k < kVector; ++k) lanes[k] = Lanes<1>::load(&packed.x[k]);
  }
  static __device__ void store(T* to, const Lanes<1> (&lanes)[kVector]) {
    Packed packed;
#pragma unroll
    for (int k = 0; k < kVector; ++k) lanes[k].store(&packed.x[k]);
    *reinterpret_cast<Packed*>(to) = packed;
  }
  static bool aligned(const T* data) {
    return reinterpret_cast<std::uintptr_t>(data) % sizeof(Packed) == 0;
  }
};

template <class Ref>
bool is_aligned(const Ref& ref) {
  return VectorAccess<std::remove_const_t<std::remove_pointer_t<decltype(ref.data)>>>::aligned(
      ref.data);
}
inline bool is_aligned(const InOutSplit& ref) {
  return VectorAccess<bf16>::aligned(ref.high) && VectorAccess<std::uint16_t>::aligned(ref.low);
}

template <class T>
struct VectorSlot<In<T>> {
  In<T> ref;
  Lanes<1> lanes[kVector];
  __device__ void load(std::uint64_t i) { VectorAccess<T>::load(ref.data + i, lanes); }
  __device__ void load_one(std::uint64_t i) { lanes[0] = Lanes<1>::load(ref.data + i); }
  __device__ const Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t, const RandomWords&) const {}
  __device__ void store_one(std::uint64_t) const {}
};
template <class T>
struct VectorSlot<InOut<T>> {
  InOut<T> ref;
  Lanes<1> lanes[kVector];
  __device__ void load(std::uint64_t i) { VectorAccess<T>::load(ref.data + i, lanes); }
  __device__ void load_one(std::uint64_t i) { lanes[0] = Lanes<1>::load(ref.data + i); }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords&) const {
    VectorAccess<T>::store(ref.data + i, lanes);
  }
  __device__ void store_one(std::uint64_t i) const { lanes[0].store(ref.data + i); }
};
template <class T>
struct VectorSlot<Out<T>> {
  Out<T> ref;
  Lanes<1> lanes[kVector];
  __device__ void load(std::uint64_t) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) lanes[k] = Lanes<1>::splat(0.0f);
  }
  __device__ void load_one(std::uint64_t) { lanes[0] = Lanes<1>::splat(0.0f); }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords&) const {
    VectorAccess<T>::store(ref.data + i, lanes);
  }
  __device__ void store_one(std::uint64_t i) const { lanes[0].store(ref.data + i); }
};

template <>
struct VectorSlot<InOutSplit> {
  InOutSplit ref;
  Lanes<1> lanes[kVector];
  __device__ void load(std::uint64_t i) {
    const auto high = *reinterpret_cast<const PackedVector<bf16>*>(ref.high + i);
    const auto low = *reinterpret_cast<const PackedVector<std::uint16_t>*>(ref.low + i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) lanes[k] = {join_float(high.x[k], low.x[k])};
  }
  __device__ void load_one(std::uint64_t i) { lanes[0] = {join_float(ref.high[i], ref.low[i])}; }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords&) const {
    PackedVector<bf16> high;
    PackedVector<std::uint16_t> low;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const SplitFloat halves = split_float(lanes[k].x);
      high.x[k] = halves.high;
      low.x[k] = halves.low;
    }
    *reinterpret_cast<PackedVector<bf16>*>(ref.high + i) = high;
    *reinterpret_cast<PackedVector<std::uint16_t>*>(ref.low + i) = low;
  }
  __device__ void store_one(std::uint64_t i) const { store_lanes(ref, i, lanes[0]); }
};
template <int field>
struct VectorSlot<InOutStochastic<field>> {
  InOutStochastic<field> ref;
  Lanes<1> lanes[kVector];
  __device__ void load(std::uint64_t i) { VectorAccess<bf16>::load(ref.data + i, lanes); }
  __device__ void load_one(std::uint64_t i) { lanes[0] = Lanes<1>::load(ref.data + i); }
  __device__ Lanes<1>& argument(int k) { return lanes[k]; }
  __device__ void store(std::uint64_t i, const RandomWords& words) const {
    PackedVector<bf16> packed;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      std::uint64_t word = words.x[k];
      if constexpr (field >= 4) word = ref.key.template word<field>(i + static_cast<unsigned>(k));
      packed.x[k] = to_bf16_stochastic(lanes[k].x, RoundingKey::bits_in<field>(word));
    }
    *reinterpret_cast<PackedVector<bf16>*>(ref.data + i) = packed;
  }
  __device__ void store_one(std::uint64_t i) const { store_lanes(ref, i, lanes[0]); }
};

template <class F, class... Slots>
__device__ void apply_vector(const F& f, std::uint64_t i, Slots... slots) {
  (slots.load(i), ...);
#pragma unroll
  for (int k = 0; k < kVector; ++k) f(slots.argument(k)...);
  RandomWords words{};
  if constexpr ((... || kRoundsAtRandom<decltype(slots.ref)>)) {
    RoundingKey key;
    ((key = key_in(slots.ref, key)), ...);
#pragma unroll
    for (int k = 0; k < kVector; ++k) words.x[k] = key.word<0>(i + static_cast<unsigned>(k));
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
  if constexpr (aligned) {
    const std::uint64_t whole = begin + (end - begin) / kVector * kVector;
    for (std::uint64_t i = begin + threadIdx.x * kVector; i < whole; i += kCudaThreads * kVector) {
      apply_vector(f, i, VectorSlot<Refs>{refs, {}}...);
    }
    begin = whole;
  }
  for (std::uint64_t i = begin + threadIdx.x; i < end; i += kCudaThreads) {
    apply_one(f, i, VectorSlot<Refs>{refs, {}}...);
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
  const bool aligned = (... && is_aligned(refs));
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
