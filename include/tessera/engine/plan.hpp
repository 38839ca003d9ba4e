// The plan: what will be allocated and sent, known before anything is. A value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/comm/mesh_shape.hpp"

namespace tessera {

/// One line of the plan's table of memory: bytes on this rank.
struct PlanLine {
  std::string what;
  std::uint64_t bytes = 0;
  bool state = false;  ///< training state: parameters, master weights, moments, reduced gradients

  friend bool operator==(const PlanLine&, const PlanLine&) = default;
};

/// What a unit adds to the plan: bytes on this rank.
struct PlanUnit {
  std::string name;
  std::uint64_t parameters = 0;  ///< its full parameter buffer
  std::uint64_t piece = 0;       ///< a rank's part of it
  std::uint64_t gradients = 0;   ///< its full gradient buffer
  std::uint64_t copied = 0;      ///< of it copied into tensors that cannot be rebound, each lease
  std::uint64_t padding = 0;     ///< elements in its pieces over all ranks that are in no tensor

  friend bool operator==(const PlanUnit&, const PlanUnit&) = default;
};

/// Memory and communication of one rank. Every rank of a group has the same plan.
struct Plan {
  std::string policy;
  MeshShape mesh;
  std::vector<PlanLine> memory;
  std::vector<PlanUnit> units;
  /// Of one step with one micro-step in the expected order, after the first: frozen parameters
  /// that stay gathered are not gathered again.
  CollectiveCounts collectives;
  /// The most that is in use at any one time; the rest of the total is gaps between slots.
  std::uint64_t most_used_bytes = 0;

  /// Exactly what materialize allocates.
  std::uint64_t total_bytes() const {
    std::uint64_t bytes = 0;
    for (const PlanLine& line : memory) bytes += line.bytes;
    return bytes;
  }
  /// The training state in it: no slots, no buffers.
  std::uint64_t state_bytes() const {
    std::uint64_t bytes = 0;
    for (const PlanLine& line : memory) {
      if (line.state) bytes += line.bytes;
    }
    return bytes;
  }

  std::string to_string() const {
    std::string text = "plan: " + policy + ", " + std::to_string(mesh.size()) + " ranks" +
                       (mesh.shard == mesh.size() ? "" : " (" + mesh.describe() + ")") +
                       ", bytes a rank\n";
    for (const PlanLine& line : memory) append(text, line.what, line.bytes);
    append(text, "total", total_bytes());
    append(text, "of it training state", state_bytes());
    text += "collectives a step, bytes received by a rank\n";
    for (int k = 0; k < kCollectiveKinds; ++k) {
      if (collectives.kinds[k].count == 0) continue;
      append(text,
             std::string(name_of(static_cast<CollectiveKind>(k))) + " x " +
                 std::to_string(collectives.kinds[k].count),
             collectives.kinds[k].bytes);
    }
    return text;
  }

  /// The units with the most bytes on this rank, at most five of them: what to split or to shard
  /// further when the plan does not fit.
  std::string largest_units() const {
    std::vector<PlanUnit> largest = units;
    std::sort(largest.begin(), largest.end(), [](const PlanUnit& a, const PlanUnit& b) {
      return a.parameters + a.gradients > b.parameters + b.gradients;
    });
    if (largest.size() > 5) largest.resize(5);
    std::string text = "largest units, bytes of full parameters and gradients\n";
    for (const PlanUnit& unit : largest) {
      append(text, unit.name, unit.parameters + unit.gradients);
    }
    return text;
  }

  friend bool operator==(const Plan&, const Plan&) = default;

 private:
  static void append(std::string& text, const std::string& what, std::uint64_t bytes) {
    char line[96];
    std::snprintf(line, sizeof line, "  %-32s %16llu\n", what.c_str(),
                  static_cast<unsigned long long>(bytes));
    text += line;
  }
};

}  // namespace tessera
