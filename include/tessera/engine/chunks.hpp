// Splitting a large unit's collective into several.
#pragma once

#include <cstdint>
#include <limits>

namespace tessera::engine {

/// Bytes of a rank's piece that one collective carries when a unit is split at `bucket_bytes`
/// bytes of full buffers. A multiple of 256 for each of `replicas`, at least that; unlimited for 0.
constexpr std::uint64_t chunk_bytes(std::uint64_t bucket_bytes, int world, int replicas = 1) {
  if (bucket_bytes == 0) return std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t least = std::uint64_t{256} * static_cast<std::uint64_t>(replicas);
  const std::uint64_t bytes = bucket_bytes / static_cast<std::uint64_t>(world) / least * least;
  return bytes == 0 ? least : bytes;
}

/// How many collectives a unit with a piece of `piece_bytes` takes.
constexpr std::uint64_t chunk_count(std::uint64_t piece_bytes, std::uint64_t bucket_bytes,
                                    int world, int replicas = 1) {
  const std::uint64_t chunk = chunk_bytes(bucket_bytes, world, replicas);
  return piece_bytes <= chunk ? 1 : (piece_bytes - 1) / chunk + 1;
}

/// Calls fn(begin, bytes) for the parts of [begin, begin + bytes) that lie in chunk `index`, where
/// `position` is the place of the first byte among all the bytes of the piece.
template <class Fn>
constexpr void part_in_chunk(std::uint64_t position, std::uint64_t bytes, std::uint64_t index,
                             std::uint64_t chunk, Fn&& fn) {
  const std::uint64_t chunk_begin = index == 0 ? 0 : index * chunk;
  const std::uint64_t chunk_end = chunk > std::numeric_limits<std::uint64_t>::max() - chunk_begin
                                      ? std::numeric_limits<std::uint64_t>::max()
                                      : chunk_begin + chunk;
  const std::uint64_t begin = position > chunk_begin ? position : chunk_begin;
  const std::uint64_t end = position + bytes < chunk_end ? position + bytes : chunk_end;
  if (begin < end) fn(begin - position, end - begin);
}

}  // namespace tessera::engine
