// Timestamps of a step: begin and end marks on streams, resolved once the streams have passed. The
// spans of a step that has ended are kept apart while those of the next are recorded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/backend/backend.hpp"
#include "tessera/engine/report.hpp"

namespace tessera::engine {

/// What a span of time on a stream counts as.
enum class Span : std::uint8_t { lease, wait, collective, other };

template <Runtime B>
class Recorder {
  static constexpr std::size_t kMost = 1 << 20;
  struct Record {
    Span span = Span::other;
    std::string_view name;
    std::string_view unit;
    StreamKind stream = StreamKind::compute;
    std::uint64_t bytes = 0;
    bool ended = false;
    std::size_t follows = kMost;  ///< the span at whose end this one begins, if `from` is not set
    typename B::Mark from;
    typename B::Mark to;
  };
  using Records = std::deque<Record>;  // marks keep their address while streams write them

 public:
  /// The spans of one step.
  struct Spans {
    std::unique_ptr<Records> records = std::make_unique<Records>();
    std::size_t count = 0;
  };

  Recorder(B& backend, bool keep_trace) : backend_(backend), keep_trace_(keep_trace) {}

  /// Opens a span on a stream; close it with end(). Names must outlive the Recorder.
  std::size_t begin(Span span, std::string_view name, std::string_view unit, StreamKind stream,
                    std::uint64_t bytes = 0) {
    if (paused_ || used_ == kMost)
      return kMost;  // a program that never calls step() must not grow for ever
    if (used_ == records_->size()) records_->emplace_back();
    Record& record = (*records_)[used_];
    record.span = span;
    record.name = name;
    record.unit = unit;
    record.stream = stream;
    record.bytes = bytes;
    record.ended = false;
    record.follows = stream == StreamKind::compute ? std::exchange(last_in_chain_, kMost) : kMost;
    if (record.follows == kMost) backend_.mark(record.from, backend_.stream(stream));
    return used_++;
  }
  void end(std::size_t record) {
    if (record == kMost) return;
    Record& of = (*records_)[record];
    of.ended = true;
    backend_.mark(of.to, backend_.stream(of.stream));
    if (chaining_ && of.stream == StreamKind::compute) last_in_chain_ = record;
  }
  /// From here to end_chain() nothing but waits is enqueued on the compute stream: a span on it
  /// begins where the one before ended, with one timestamp for both.
  void begin_chain() {
    chaining_ = B::defers;
    last_in_chain_ = kMost;
  }
  void end_chain() {
    chaining_ = false;
    last_in_chain_ = kMost;
  }
  /// Spans are not taken: what is recorded into a graph leaves them out, since each costs a node.
  void pause() { paused_ = true; }
  void resume() { paused_ = false; }

  /// A point in time, such as a reshard.
  void instant(std::string_view name, std::string_view unit, StreamKind stream) {
    if (keep_trace_) end(begin(Span::other, name, unit, stream));
  }

  /// The step has ended: its spans wait to be resolved, those of the next are recorded. The ones
  /// of the step before must have been resolved.
  void end_step() {
    end_chain();
    std::swap(records_, ended_.records);
    ended_.count = std::exchange(used_, 0);
  }
  /// The spans of the step that ended last, for a step that will run again and again.
  Spans take_ended() { return std::exchange(ended_, Spans{}); }

  /// Sets the report's times from the spans of the step that ended last. All streams must have
  /// passed all their marks.
  void resolve(StepReport& report) {
    resolve(report, ended_);
    ended_.count = 0;
  }
  void resolve(StepReport& report, const Spans& spans) {
    std::vector<Interval> leases;
    std::vector<Interval> waits;
    std::int64_t communication = 0;
    for (std::size_t i = 0; i < spans.count; ++i) {
      const Record& record = (*spans.records)[i];
      if (!record.ended) continue;
      const typename B::Mark& from =
          record.follows == kMost ? record.from : (*spans.records)[record.follows].to;
      const Interval time{backend_.time_ns(from), backend_.time_ns(record.to)};
      if (record.span == Span::collective) communication += time.second - time.first;
      if (record.span == Span::lease) leases.push_back(time);
      if (record.span == Span::wait) waits.push_back(time);
      if (keep_trace_) {
        trace_.push_back({std::string(record.name), std::string(record.unit), record.stream,
                          time.first, time.second, record.bytes});
      }
    }
    merge(leases);
    merge(waits);
    report.communication_ms = ms(communication);
    report.exposed_ms = ms(length(waits));
    report.compute_ms = ms(length(leases) - common(leases, waits));
  }

  /// Everything resolved so far; empty unless the trace is kept.
  const std::vector<TraceEvent>& trace() const { return trace_; }
  /// Forgets the spans after the first `count`: those of a failed step, or of an evaluation.
  void truncate(std::size_t count) {
    end_chain();  // it may have been left by an exception
    used_ = std::min(used_, count);
  }
  std::size_t count() const { return used_; }

 private:
  using Interval = std::pair<std::int64_t, std::int64_t>;

  static double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

  // Leases may be nested: each moment counts once.
  static void merge(std::vector<Interval>& intervals) {
    std::sort(intervals.begin(), intervals.end());
    std::size_t kept = 0;
    for (const Interval& next : intervals) {
      if (kept > 0 && next.first <= intervals[kept - 1].second) {
        intervals[kept - 1].second = std::max(intervals[kept - 1].second, next.second);
      } else {
        intervals[kept++] = next;
      }
    }
    intervals.resize(kept);
  }
  static std::int64_t length(const std::vector<Interval>& intervals) {
    std::int64_t total = 0;
    for (const Interval& interval : intervals) total += interval.second - interval.first;
    return total;
  }
  static std::int64_t common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
    std::int64_t total = 0;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      const std::int64_t from = std::max(a[i].first, b[j].first);
      const std::int64_t to = std::min(a[i].second, b[j].second);
      if (from < to) total += to - from;
      if (a[i].second < b[j].second) {
        ++i;
      } else {
        ++j;
      }
    }
    return total;
  }

  B& backend_;
  const bool keep_trace_;
  std::unique_ptr<Records> records_ = std::make_unique<Records>();
  std::size_t used_ = 0;
  Spans ended_;
  bool paused_ = false;
  bool chaining_ = false;
  std::size_t last_in_chain_ = kMost;
  std::vector<TraceEvent> trace_;
};

}  // namespace tessera::engine
