#include "results.hpp"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "input_error.hpp"

namespace gpt {

static std::string hexadecimal(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void print_tables(const Results& r) {
  std::printf(
      "\nbytes per rank        planned     measured        state   replicated: total, state\n");
  for (std::size_t rank = 0; rank < r.memory.size(); ++rank) {
    const RankBytes& m = r.memory[rank];
    std::printf("rank %-3zu        %12llu %12llu %12llu   %12llu %12llu\n", rank,
                static_cast<unsigned long long>(m.planned),
                static_cast<unsigned long long>(m.measured),
                static_cast<unsigned long long>(m.state),
                static_cast<unsigned long long>(r.replicated_total),
                static_cast<unsigned long long>(r.replicated_state));
  }
  if (!r.memory.empty() && r.memory[0].planned > 0) {
    std::printf(
        "in use at the high-water mark: %.1f %% of the plan\n",
        100.0 * static_cast<double>(r.most_used) / static_cast<double>(r.memory[0].planned));
  }
  std::printf("\ncollectives of rank 0      count");
  std::printf(r.formula ? "   formula          bytes        formula\n" : "          bytes\n");
  for (int k = 0; k < tessera::kCollectiveKinds; ++k) {
    const tessera::CollectiveCount& seen = r.collectives.kinds[k];
    const char* const name = tessera::name_of(static_cast<tessera::CollectiveKind>(k));
    if (!r.formula) {
      if (seen.count == 0) continue;
      std::printf("%-22s %9llu %14llu\n", name, static_cast<unsigned long long>(seen.count),
                  static_cast<unsigned long long>(seen.bytes));
      continue;
    }
    const tessera::CollectiveCount& due = r.formula->kinds[k];
    if (seen.count == 0 && due.count == 0) continue;
    std::printf(
        "%-22s %9llu %9llu %14llu %14llu%s\n", name, static_cast<unsigned long long>(seen.count),
        static_cast<unsigned long long>(due.count), static_cast<unsigned long long>(seen.bytes),
        static_cast<unsigned long long>(due.bytes), seen == due ? "" : "  <- differs");
  }
}

void write_json(const Results& r, const std::string& path) {
  nlohmann::json collectives = nlohmann::json::object();
  for (int k = 0; k < tessera::kCollectiveKinds; ++k) {
    const tessera::CollectiveCount& seen = r.collectives.kinds[k];
    if (seen.count == 0) continue;
    collectives[tessera::name_of(static_cast<tessera::CollectiveKind>(k))] = {
        {"count", seen.count}, {"bytes", seen.bytes}};
  }
  nlohmann::json planned = nlohmann::json::array();
  nlohmann::json peak = nlohmann::json::array();
  nlohmann::json state = nlohmann::json::array();
  for (const RankBytes& m : r.memory) {
    planned.push_back(m.planned);
    peak.push_back(m.measured);
    state.push_back(m.state);
  }
  const nlohmann::json all = {
      {"strategy", r.strategy},
      {"precision", r.precision},
      {"ranks", r.ranks},
      {"mesh",
       {{"replicate", r.mesh.replicate}, {"shard", r.mesh.shard}, {"tensor", r.mesh.tensor}}},
      {"steps", r.steps},
      {"first_loss", r.first_loss},
      {"last_loss", r.last_loss},
      {"val_loss", r.val_loss},
      {"params_digest", hexadecimal(r.params_digest)},
      {"moments_digest", hexadecimal(r.moments_digest)},
      {"planned_bytes", planned},
      {"peak_bytes", peak},
      {"state_bytes", state},
      {"most_used_bytes", r.most_used},
      {"collectives", collectives},
      {"tokens_per_s", r.tokens_per_s},
      {"exposed_ms", r.exposed_ms},
      {"communication_ms", r.communication_ms},
      {"step_ms_median", r.step_ms_median},
      {"seconds", r.seconds}};
  std::ofstream file(path);
  file << all.dump(2) << '\n';
  file.close();
  if (!file) throw InputError("cannot write the results to " + path + ".");
}

}  // namespace gpt
