// What a step did, measured: StepReport, and the times of what ran on which stream.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/backend/backend.hpp"
#include "tessera/comm/communicator.hpp"

namespace tessera {

/// One step, as measured. Times come from timestamps that the streams took as they passed.
struct StepReport {
  std::uint64_t step = 0;      ///< optimizer updates so far, this one included if not skipped
  bool skipped = false;        ///< a gradient was inf or NaN on some rank: nothing was changed
  bool order_changed = false;  ///< the order of leases was not the expected one: recorded anew
  double norm = 0;             ///< of the reduced gradients, before clipping; all ranks agree
  double clipped_norm = 0;     ///< after clipping
  float learning_rate = 0;
  float loss_scale = 1;
  double step_ms = 0;  ///< from the end of the previous step() to the end of this one
  /// Leases were open and compute was not held up. On a device without Options::trace: all of the
  /// time from the first lease to step() in which compute was not held up.
  double compute_ms = 0;
  double communication_ms = 0;   ///< a collective ran, waiting for other ranks included
  double exposed_ms = 0;         ///< compute was held up by gathers, reductions and the norm
  double host_enqueue_us = 0;    ///< the caller spent in the library, waits left out
  CollectiveCounts collectives;  ///< since the previous step
  std::uint64_t peak_bytes = 0;  ///< most of the plan's bytes in use at any one time so far

  /// The part of the communication that compute did not wait for.
  double overlap() const {
    return communication_ms > 0 && exposed_ms < communication_ms ? 1 - exposed_ms / communication_ms
                                                                 : 0;
  }
};

/// What ran on a stream, for Shard::trace(). Times in ns of one clock over all ranks of a process.
struct TraceEvent {
  std::string name;  ///< "gather", "forward", "backward", "reduce", "reshard", "wait", ...
  std::string unit;
  StreamKind stream = StreamKind::compute;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::uint64_t bytes = 0;
};

/// Writes the ranks' events (one vector a rank) as a Chrome trace: chrome://tracing or
/// ui.perfetto.dev open it. False when the file cannot be written.
inline bool write_chrome_trace(const std::string& path,
                               const std::vector<std::vector<TraceEvent>>& ranks) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const auto escaped = [](const std::string& text) {
    std::string out;
    for (char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out;
  };
  std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file);
  const char* separator = "";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (int k = 0; k < kStreamKinds; ++k) {
      std::fprintf(file,
                   "%s{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%zu,\"tid\":%d,"
                   "\"args\":{\"name\":\"%s\"}}",
                   separator, r, k, name_of(static_cast<StreamKind>(k)));
      separator = ",\n";
    }
    for (const TraceEvent& event : ranks[r]) {
      std::fprintf(file,
                   "%s{\"name\":\"%s %s\",\"ph\":\"X\",\"pid\":%zu,\"tid\":%d,\"ts\":%.3f,"
                   "\"dur\":%.3f,\"args\":{\"unit\":\"%s\",\"bytes\":%llu}}",
                   separator, escaped(event.name).c_str(), escaped(event.unit).c_str(), r,
                   static_cast<int>(event.stream), static_cast<double>(event.begin_ns) / 1e3,
                   static_cast<double>(event.end_ns - event.begin_ns) / 1e3,
                   escaped(event.unit).c_str(), static_cast<unsigned long long>(event.bytes));
    }
  }
  std::fputs("\n]}\n", file);
  return std::fclose(file) == 0;
}

}  // namespace tessera
