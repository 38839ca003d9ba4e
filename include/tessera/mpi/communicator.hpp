// Ranks that are processes over MPI, with sums in rank order.
#pragma once

#include "tessera/mpi/api.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backend/host_stream.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/reduce_scratch.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/rank_sum.hpp"
#include "tessera/mpi/open.hpp"
#include "tessera/mpi/options.hpp"
#include "tessera/mpi/state.hpp"
#include "tessera/mpi/transfer.hpp"

namespace tessera {

inline namespace TESSERA_ISA {  // its sums are made of SIMD lanes: see backend/host.hpp

/// A rank's handle on an MPI group. Copies share it. Memory is the host's.
///
/// Collectives run on the streams' threads as messages between each two ranks, which are under way
/// together: MPI only carries the parts, and gradients are added in rank order, so that they are
/// those of in-process ranks to the bit. A rank that does not come, or makes another call, fails
/// the others' collectives within the time-out, with a message that names it. abort() tells the
/// others, whose collectives fail with its reason; the group cannot be used again.
///
/// Where MPI was not begun it is, with MPI_THREAD_MULTIPLE, and ended with the process: by
/// MPI_Finalize, or by MPI_Abort where a group has failed, since MPI_Finalize would wait for ranks
/// that are gone.
class Mpi {
 public:
  /// reduce_scatter needs as many bytes of scratch as the gradients have that it reduces.
  static constexpr bool needs_reduce_scratch = true;

  /// A group of one, without MPI.
  Mpi() : Mpi(std::make_shared<detail::MpiState>()) {}

  /// Whether mpirun, of Open MPI or MPICH, started this process as one of several. Asks nothing of
  /// MPI, which a process by itself need not begin.
  static bool launched() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
      const char* const size = std::getenv(name);
      if (size != nullptr && std::atoi(size) > 1) return true;
    }
    return false;
  }

  /// Ends the processes of all ranks, with this status: for a program that gives up while others
  /// may be waiting for it, which leaving main would do too. By MPI_Abort.
  static void end_job(int status) {
    const detail::MpiSession::Lock lock = detail::MpiSession::get().lock();
    (void)MPI_Abort(MPI_COMM_WORLD, status);
  }

  /// All ranks that mpirun started. Collective.
  static Mpi world(const MpiOptions& options = {}) {
    (void)detail::MpiSession::get();
    return Mpi(detail::open_mpi(MPI_COMM_WORLD, options));
  }
  /// The ranks of the user's communicator, on duplicates of it. Collective.
  static Mpi adopt(MPI_Comm comm, const MpiOptions& options = {}) {
    (void)detail::MpiSession::get();
    return Mpi(detail::open_mpi(comm, options));
  }

  int rank() const { return state_->rank; }
  int size() const { return state_->size; }

  /// A further order of collectives over the same ranks. Collective: every rank makes its channels
  /// in the same order, from the caller's thread.
  Mpi channel() { return Mpi(detail::open_mpi_channel(*state_)); }
  /// The ranks with the same color form a new group, ordered by (key, rank). Collective, blocking;
  /// while none of this process's collectives is under way.
  Mpi split(int color, int key = 0) { return Mpi(detail::open_mpi_split(*state_, color, key)); }

  /// A number of each rank's, in rank order, such as a loss. Collective, blocking the caller.
  std::vector<double> exchange(double mine) const {
    std::vector<double> all(static_cast<std::size_t>(size()), mine);
    if (size() == 1) return all;
    detail::MpiTransfer transfer(*state_, {CollectiveKind::scalars, "a number"}, kCaller);
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + size() - step) % size();
      transfer.receive(from, &all[static_cast<std::size_t>(from)], sizeof(double));
    }
    for (int step = 1; step < size(); ++step) {
      transfer.send((rank() + step) % size(), &mine, sizeof mine);
    }
    transfer.wait();
    return all;
  }
  /// Rank `root`'s bytes on all: what Nccl::from_broadcast takes. Collective, blocking the caller.
  void share(void* data, std::size_t bytes, int root = 0) const {
    if (size() > 1) spread({CollectiveKind::broadcast, "shared"}, kCaller, data, bytes, root);
  }

  void all_gather(HostStream& stream, CollectiveTag tag, std::span<const GatherSegment> segments) {
    stream.enqueue([self = *this, tag, parts = to_vector(segments)] { self.gather(tag, parts); });
  }
  void reduce_scatter(HostStream& stream, CollectiveTag tag,
                      std::span<const ReduceSegment> segments, std::byte* scratch) {
    stream.enqueue([self = *this, tag, parts = to_vector(segments), scratch] {
      self.reduce(tag, parts, scratch);
    });
  }
  /// `bytes` at `data` of rank `root` arrive at `data` of every rank.
  void broadcast(HostStream& stream, CollectiveTag tag, void* data, std::uint64_t bytes, int root) {
    stream.enqueue([=, self = *this] {
      if (self.size() == 1) return;
      self.spread(tag, kStream, data, bytes, root);
      self.state_->count(tag.kind, self.rank() == root ? 0 : bytes);
    });
  }

  CollectiveCounts counts() const {
    const std::lock_guard lock(state_->counts_mutex);
    return state_->counts;
  }
  std::string transport_note() const {
    return size() == 1 ? "one rank: nothing is sent."
                       : "messages over MPI between each two ranks, sums in rank order.";
  }
  void abort(const std::string& reason) {
    if (state_->family) state_->family->abort(reason);
  }
  bool aborted() const { return state_->aborted(); }
  /// Throws after an abort: messages of it may still arrive.
  void reset() {
    if (!aborted()) return;
    throw CommunicatorError(rank(), "", "reset",
                            detail::concat("an MPI group cannot be used again after an abort (",
                                           state_->family->reason(), "): end the job"));
  }

 private:
  static constexpr int kStream = 0;  // message tags
  static constexpr int kCaller = 1;

  explicit Mpi(std::shared_ptr<detail::MpiState> state) : state_(std::move(state)) {}

  template <class T>
  static std::vector<T> to_vector(std::span<const T> items) {
    return std::vector<T>(items.begin(), items.end());
  }
  static std::byte* at(const void* base, std::uint64_t bytes) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(base)) + bytes;
  }

  void gather(CollectiveTag tag, const std::vector<GatherSegment>& segments) const {
    std::uint64_t bytes = 0;
    detail::MpiTransfer transfer(*state_, tag, kStream);
    // Receives first: what arrives has a place to go to.
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + size() - step) % size();
      for (const GatherSegment& s : segments) {
        transfer.receive(from, at(s.full, s.stride * static_cast<std::uint64_t>(from)), s.bytes);
      }
    }
    for (int step = 1; step < size(); ++step) {
      for (const GatherSegment& s : segments) {
        transfer.send((rank() + step) % size(), s.piece, s.bytes);
      }
    }
    for (const GatherSegment& s : segments) {
      std::byte* const own = at(s.full, s.stride * static_cast<std::uint64_t>(rank()));
      if (s.bytes > 0 && own != s.piece) std::memcpy(own, s.piece, s.bytes);
      bytes += s.bytes;
    }
    if (size() == 1) return;
    transfer.wait();
    state_->count(tag.kind, bytes * static_cast<std::uint64_t>(size() - 1));
  }

  void reduce(CollectiveTag tag, const std::vector<ReduceSegment>& segments,
              std::byte* scratch) const {
    std::uint64_t bytes = 0;
    detail::ReduceScratch parts(scratch, rank(), size(), size() > 1);
    detail::MpiTransfer transfer(*state_, tag, kStream);
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + size() - step) % size();
      parts.rewind();
      for (const ReduceSegment& s : segments) {
        transfer.receive(from, parts.part(s, from), s.elements * size_of(s.dtype));
        parts.pass(s);
      }
    }
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      for (const ReduceSegment& s : segments) {
        const std::uint64_t stride = s.stride * size_of(s.dtype);
        transfer.send(to, at(s.full, stride * static_cast<std::uint64_t>(to)),
                      s.elements * size_of(s.dtype));
      }
    }
    transfer.wait();
    parts.rewind();
    for (const ReduceSegment& s : segments) {
      bytes += s.elements * size_of(s.dtype);
      if (s.elements > 0 && s.dtype == DType::f32) {
        sum<float, float>(s, parts);
      } else if (s.elements > 0 && s.out_dtype == DType::f32) {
        sum<bf16, float>(s, parts);
      } else if (s.elements > 0) {
        sum<bf16, bf16>(s, parts);
      }
      parts.pass(s);
    }
    if (size() > 1) state_->count(tag.kind, bytes * static_cast<std::uint64_t>(size() - 1));
  }

  template <class T, class O>
  void sum(const ReduceSegment& segment, const detail::ReduceScratch& parts) const {
    std::vector<const T*> sources(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      sources[static_cast<std::size_t>(r)] =
          r == rank()
              ? static_cast<const T*>(segment.full) + segment.stride * static_cast<std::uint64_t>(r)
              : reinterpret_cast<const T*>(parts.part(segment, r));
    }
    rank_sum(segment.elements, sources.data(), size(), segment.scale, segment.accumulate,
             static_cast<O*>(segment.out));
  }

  void spread(CollectiveTag tag, int message, void* data, std::uint64_t bytes, int root) const {
    if (root < 0 || root >= size()) {
      state_->fail_call(tag, detail::concat("the root is rank ", root, ", but the group has ",
                                            size(), " rank(s)"));
    }
    detail::MpiTransfer transfer(*state_, tag, message);
    if (rank() != root) {
      transfer.receive(root, data, bytes);
    } else {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != root) transfer.send(peer, data, bytes);
      }
    }
    transfer.wait();
  }

  std::shared_ptr<detail::MpiState> state_;
};

}  // namespace TESSERA_ISA
}  // namespace tessera
