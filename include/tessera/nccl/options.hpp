// How an NCCL group is made.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstdint>

#include "tessera/comm/timeout.hpp"
#include "tessera/error.hpp"

namespace tessera {

/// How the bytes of a plan's collectives travel. Nccl::transport_note, and Shard::transport, say
/// which it was.
enum class NcclTransport : std::uint8_t {
  /// peer_copies where the ranks can, unless a gather that is timed at start-up takes more
  /// than 1.25
  /// times as long as NCCL's; else nccl.
  automatic,
  /// As NCCL sends them: kernels, or what cta_policy and symmetric_windows ask for.
  nccl,
  /// Copies between memory that the ranks have opened to each other: copy engines move gathers and
  /// gradients and leave the multiprocessors alone. Ranks on one host whose GPUs are all peers;
  /// Error otherwise. Of the collectives whose memory is the plan's; others go by NCCL.
  peer_copies,
};

/// Options of an Nccl group; channels and splits inherit them.
struct NcclOptions {
  /// The longest that a call waits on the host for the other ranks: in making a group, a channel or
  /// a split, in a collective's set-up, in registering memory, in Nccl::synchronize.
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
  /// The CUDA device of this rank. -1: LOCAL_RANK in from_environment, else the current device.
  int device = -1;
  /// Where ranks meet in from_environment, on MASTER_ADDR. 0: MASTER_PORT + 1.
  int bootstrap_port = 0;
  /// Issues NCCL calls even where there is one rank, to measure what they cost on the host. A
  /// reduction without scratch is NCCL's own in place then, which moves nothing.
  bool force_at_one_rank = false;
  /// Calls on channels and splits block until NCCL has enqueued them. That saves the thread that
  /// NCCL starts for each group of calls otherwise. It gives up the time-out inside such a call,
  /// and an abort from another thread that meets one there frees what the call may still read.
  bool blocking_channels = false;
  NcclTransport transport = NcclTransport::automatic;
  /// NCCL_CTA_POLICY_DEFAULT, _EFFICIENCY or _ZERO. ZERO asks for copy engines in place of kernels,
  /// and gets them for all-gathers whose two buffers lie in symmetric windows of ranks that are
  /// all peers on one host.
  int cta_policy = NCCL_CTA_POLICY_DEFAULT;
  /// Whether register_memory makes windows; without, it does nothing. For a plan's memory
  /// `transport` must be nccl besides, or copies come first.
  bool symmetric_windows = false;
  int min_ctas = 0;  ///< 0: NCCL's choice
  int max_ctas = 0;  ///< bounds the multiprocessors that a collective takes; 0: NCCL's choice
};

namespace detail {

inline void check_options(const NcclOptions& options) {
  if (options.timeout.count() <= 0) {
    fail("tessera: NcclOptions::timeout is ", options.timeout.count(),
         " ms, but it must be positive");
  }
  if (options.cta_policy != NCCL_CTA_POLICY_DEFAULT &&
      options.cta_policy != NCCL_CTA_POLICY_EFFICIENCY &&
      options.cta_policy != NCCL_CTA_POLICY_ZERO) {
    fail("tessera: NcclOptions::cta_policy is ", options.cta_policy,
         ", which is none of NCCL_CTA_POLICY_DEFAULT, _EFFICIENCY and _ZERO");
  }
  if (options.min_ctas < 0 || options.max_ctas < 0 ||
      (options.max_ctas != 0 && options.min_ctas > options.max_ctas)) {
    fail("tessera: NcclOptions::min_ctas and max_ctas are ", options.min_ctas, " and ",
         options.max_ctas, ", which is no range");
  }
  if (options.bootstrap_port < 0 || options.bootstrap_port > 65535) {
    fail("tessera: NcclOptions::bootstrap_port is ", options.bootstrap_port,
         ", but it must be 0 to 65535");
  }
}

/// What a group keeps of its options: its deadlines must not overflow a clock.
inline NcclOptions kept_options(NcclOptions options) {
  options.timeout = checked_timeout(options.timeout, "an NCCL group");
  return options;
}

/// Children get their own: NCCL would pass on the parent's, and by splitShare its resources, whose
/// use on two streams at a time would put one collective behind the other.
inline ncclConfig_t make_config(const NcclOptions& options, bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  config.splitShare = 0;
  config.CTAPolicy = options.cta_policy;
  if (options.min_ctas != 0) config.minCTAs = options.min_ctas;
  if (options.max_ctas != 0) config.maxCTAs = options.max_ctas;
  return config;
}

}  // namespace detail
}  // namespace tessera
