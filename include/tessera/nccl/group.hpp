// NCCL calls that are enqueued together.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/communicator.hpp"
#include "tessera/comm/reduce_scratch.hpp"
#include "tessera/cuda/error.hpp"

namespace tessera::detail {

/// ncclGroupStart to ncclGroupEnd: the latter is reached however the scope is left, since the
/// group is the thread's.
class NcclGroup {
 public:
  NcclGroup() { note(ncclGroupStart(), "ncclGroupStart"); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (!ended_) ncclGroupEnd();
  }

  /// Keeps the first failure.
  void note(ncclResult_t result, const char* call) {
    if (result == ncclSuccess || result == ncclInProgress || failed_) return;
    failed_ = true;
    result_ = result;
    call_ = call;
  }
  /// Success, ncclInProgress, or the first failure.
  ncclResult_t end() {
    ended_ = true;
    const ncclResult_t result = ncclGroupEnd();
    note(result, "ncclGroupEnd");
    return failed_ ? result_ : result;
  }
  const char* call() const { return call_; }

 private:
  bool ended_ = false;
  bool failed_ = false;
  ncclResult_t result_ = ncclSuccess;
  const char* call_ = "ncclGroupEnd";
};

/// A rank's place in the communicator that calls go to.
struct NcclPlace {
  ncclComm_t comm = nullptr;
  int rank = 0;
  int size = 1;
  cudaStream_t stream = nullptr;
};

inline const std::byte* at(const void* base, std::uint64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
inline std::byte* at(void* base, std::uint64_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}

/// Copies this rank's own piece where NCCL does not: between ranks' parts that lie apart, and where
/// NCCL is not asked at all.
inline void copy_own_piece(const NcclPlace& place, const GatherSegment& segment) {
  std::byte* to = at(segment.full, segment.stride * static_cast<std::uint64_t>(place.rank));
  if (segment.bytes == 0 || to == segment.piece) return;
  check_cuda(
      cudaMemcpyAsync(to, segment.piece, segment.bytes, cudaMemcpyDeviceToDevice, place.stream),
      "copying a rank's own piece of an all-gather");
}

/// Whether the parts of all ranks are one range, which is what ncclAllGather fills.
inline bool is_contiguous(const GatherSegment& segment) { return segment.stride == segment.bytes; }

/// Adds one part of an all-gather to the group. A part whose ranks lie apart goes from each rank to
/// each other by itself.
inline void add_gather(NcclGroup& group, const NcclPlace& place, const GatherSegment& segment) {
  if (segment.bytes == 0) return;
  if (is_contiguous(segment)) {
    group.note(ncclAllGather(segment.piece, segment.full, segment.bytes, ncclUint8, place.comm,
                             place.stream),
               "ncclAllGather");
    return;
  }
  for (int step = 1; step < place.size; ++step) {
    const int to = (place.rank + step) % place.size;
    const int from = (place.rank + place.size - step) % place.size;
    group.note(ncclSend(segment.piece, segment.bytes, ncclUint8, to, place.comm, place.stream),
               "ncclSend");
    group.note(ncclRecv(at(segment.full, segment.stride * static_cast<std::uint64_t>(from)),
                        segment.bytes, ncclUint8, from, place.comm, place.stream),
               "ncclRecv");
  }
}

/// Adds one part of a reduce-scatter to the group: every rank's part of this rank's gradients goes
/// there, and this rank's part of theirs into the scratch.
inline void add_exchange(NcclGroup& group, const NcclPlace& place, const ReduceSegment& segment,
                         const ReduceScratch& scratch) {
  const std::uint64_t bytes = segment.elements * size_of(segment.dtype);
  const std::uint64_t stride = segment.stride * size_of(segment.dtype);
  if (bytes == 0) return;
  if (place.size == 1 && !scratch.holds_own()) {
    // Moves nothing, but is a call.
    void* same = const_cast<void*>(segment.full);
    const ncclDataType_t type = segment.dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
    group.note(
        ncclReduceScatter(same, same, segment.elements, type, ncclSum, place.comm, place.stream),
        "ncclReduceScatter");
    return;
  }
  for (int step = place.size == 1 ? 0 : 1; step < place.size; ++step) {
    const int to = (place.rank + step) % place.size;
    const int from = (place.rank + place.size - step) % place.size;
    group.note(ncclSend(at(segment.full, stride * static_cast<std::uint64_t>(to)), bytes, ncclUint8,
                        to, place.comm, place.stream),
               "ncclSend");
    group.note(
        ncclRecv(scratch.part(segment, from), bytes, ncclUint8, from, place.comm, place.stream),
        "ncclRecv");
  }
}

}  // namespace tessera::detail
