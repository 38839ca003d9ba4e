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
    if (!coarse()) return take(span, name, unit, stream, bytes);
    switch (span) {
      case Span::other: return kMost;
      case Span::lease:
        if (leases_ == kMost) leases_ = take(span, name, unit, stream, bytes);
        return kMost;
      case Span::wait:
        if (!opening_) break;
        if (waits_ == kMost) waits_ = take(span, name, unit, stream, bytes);
        return waits_;
      case Span::collective: break;
    }
    return take(span, name, unit, stream, bytes);
  }
  void end(std::size_t record) {
    if (record == kMost || record == waits_) return;
    finish(record);
  }

  /// A lease opens: until end_opening() nothing but waits is enqueued on the compute stream. A
  /// timestamp costs the host a microsecond where streams are a device's: there, unless a trace is
  /// kept, these waits are one span, and so are a step's leases, up to end_leases().
  void begin_opening() { opening_ = coarse(); }
  void end_opening() {
    opening_ = false;
    if (const std::size_t record = std::exchange(waits_, kMost); record != kMost) finish(record);
  }
  void end_leases() {
    if (const std::size_t record = std::exchange(leases_, kMost); record != kMost) finish(record);
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
    std::vector<Interval> collectives;
    for (std::size_t i = 0; i < spans.count; ++i) {
      const Record& record = (*spans.records)[i];
      if (!record.ended) continue;
      const Interval time{backend_.time_ns(record.from), backend_.time_ns(record.to)};
      if (record.span == Span::collective) collectives.push_back(time);
      if (record.span == Span::lease) leases.push_back(time);
      if (record.span == Span::wait) waits.push_back(time);
      if (keep_trace_) {
        trace_.push_back({std::string(record.name), std::string(record.unit), record.stream,
                          time.first, time.second, record.bytes});
      }
    }
    merge(leases);
    merge(waits);
    merge(collectives);  // gathers and reductions may run at a time
    report.communication_ms = ms(length(collectives));
    report.exposed_ms = ms(length(waits));
    report.compute_ms = ms(length(leases) - common(leases, waits));
  }

  /// Everything resolved so far; empty unless the trace is kept.
  const std::vector<TraceEvent>& trace() const { return trace_; }
  /// Forgets the spans after the first `count`: those of a failed step, or of an evaluation.
  void truncate(std::size_t count) {
    opening_ = false;  // it may have been left by an exception
    waits_ = kMost;
    if (leases_ >= count) leases_ = kMost;
    used_ = std::min(used_, count);
  }
  std::size_t count() const { return used_; }

 private:
  using Interval = std::pair<std::int64_t, std::int64_t>;

  bool coarse() const { return B::defers && !keep_trace_; }

  std::size_t take(Span span, std::string_view name, std::string_view unit, StreamKind stream,
                   std::uint64_t bytes) {
    // A program that never calls step() must not grow for ever.
    if (paused_ || used_ == kMost) return kMost;
    if (used_ == records_->size()) records_->emplace_back();
    Record& record = (*records_)[used_];
    record.span = span;
    record.name = name;
    record.unit = unit;
    record.stream = stream;
    record.bytes = bytes;
    record.ended = false;
    backend_.mark(record.from, backend_.stream(stream));
    return used_++;
  }
  void finish(std::size_t record) {
    Record& of = (*records_)[record];
    of.ended = true;
    backend_.mark(of.to, backend_.stream(of.stream));
  }

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
  bool opening_ = false;
  std::size_t waits_ = kMost;   ///< of the lease that is opening
  std::size_t leases_ = kMost;  ///< of the step
  std::vector<TraceEvent> trace_;
};

}  // namespace tessera::engine
