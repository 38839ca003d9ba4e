// Which part of a larger tensor a tensor is: what a tensor-parallel rank keeps of it.
#pragma once

#include <cstdint>

#include "tessera/error.hpp"
#include "tessera/exact/config.hpp"
#include "tessera/tensor/shape.hpp"

namespace tessera {

/// Along one dimension of the whole tensor, `whole` long, the tensor has [begin, begin + its own
/// extent). Where the dimension is `blocks` parts of that length one after the other, as the rows
/// of fused query, key and value weights are, it has that range of each.
struct Slice {
  int dimension = 0;
  std::uint64_t begin = 0;
  std::uint64_t whole = 0;
  std::uint64_t blocks = 1;
};

/// A slice of a tensor of known shape, as arithmetic on element indices. Default: all of it.
struct SlicePlace {
  std::uint64_t inner = 1;   ///< elements from one index of the dimension to the next
  std::uint64_t extent = 1;  ///< indices of a block that the tensor has
  std::uint64_t begin = 0;
  std::uint64_t whole = 1;

  /// Where element `index` of the tensor is in the whole one, both in row-major order.
  TESSERA_HD constexpr std::uint64_t whole_index(std::uint64_t index) const {
    const std::uint64_t row = index / inner;
    return (row / extent * whole + begin + row % extent) * inner + index % inner;
  }
  friend constexpr bool operator==(const SlicePlace&, const SlicePlace&) = default;
};

/// Throws Error where the slice does not fit a tensor of this shape.
inline SlicePlace place_of(const Slice& slice, const Shape& shape, const char* name) {
  const auto refuse = [&](auto&&... why) {
    detail::fail("tessera: the slice of tensor '", name, "' of shape ", shape, " ", why...);
  };
  if (slice.dimension < 0 || slice.dimension >= shape.rank()) {
    refuse("is along dimension ", slice.dimension, ", which it has not");
  }
  const auto own = static_cast<std::uint64_t>(shape.extent(slice.dimension));
  if (slice.blocks == 0 || own % slice.blocks != 0) {
    refuse("is of ", slice.blocks, " blocks, which its extent ", own, " cannot be cut into");
  }
  SlicePlace place;
  place.extent = own / slice.blocks;
  place.begin = slice.begin;
  place.whole = slice.whole;
  if (slice.begin > slice.whole || place.extent > slice.whole - slice.begin) {
    refuse("ends at ", slice.begin, " + ", place.extent, " of ", slice.whole);
  }
  for (int d = slice.dimension + 1; d < shape.rank(); ++d) {
    place.inner *= static_cast<std::uint64_t>(shape.extent(d));
  }
  if (place.inner == 0) place.inner = 1;
  if (place.extent == 0) place.extent = 1;  // of no elements: never asked for an index
  return place;
}

}  // namespace tessera
