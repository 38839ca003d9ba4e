// What a run leaves behind: the tables it prints and the JSON it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <tessera/tessera.hpp>

namespace gpt {

/// One rank's memory, in bytes.
struct RankBytes {
  std::uint64_t planned = 0;
  std::uint64_t measured = 0;  ///< counted at the allocator
  std::uint64_t state = 0;
};

struct Results {
  std::string strategy;
  std::string precision;
  std::size_t ranks = 0;
  tessera::MeshShape mesh;  ///< of these ranks
  std::size_t steps = 0;
  double first_loss = 0;
  double last_loss = 0;
  double val_loss = 0;
  std::uint64_t params_digest = 0;
  std::uint64_t moments_digest = 0;
  std::vector<RankBytes> memory;
  std::uint64_t replicated_total = 0;  ///< planned under Replicate
  std::uint64_t replicated_state = 0;
  std::uint64_t most_used = 0;
  tessera::CollectiveCounts collectives;  ///< received by rank 0 in all steps
  /// The same by the closed formulae, where there are some for the mesh.
  std::optional<tessera::CollectiveCounts> formula;
  double tokens_per_s = 0;
  double exposed_ms = 0;        ///< median over the steps
  double communication_ms = 0;  ///< median over the steps
  double step_ms_median = 0;
  double seconds = 0;
  std::string sample;
};

/// Memory and collectives, to standard output.
void print_tables(const Results& results);
/// Throws InputError where the file cannot be written.
void write_json(const Results& results, const std::string& path);

}  // namespace gpt
