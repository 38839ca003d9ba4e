// A step that has been enqueued and whose report nobody has read yet.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "tessera/backend/backend.hpp"
#include "tessera/engine/recorder.hpp"
#include "tessera/engine/report.hpp"
#include "tessera/engine/step_memory.hpp"

namespace tessera::engine {

/// A report that a ticket shares with the engine, which fills it in.
struct EnqueuedReport {
  StepReport report;
  bool filled = false;
};

/// Brings a step's scalars back and tells when it has ended. One step at a time.
template <Runtime B>
class PendingStep {
 public:
  using Spans = typename Recorder<B>::Spans;

  explicit PendingStep(B& backend)
      : backend_(backend),
        scalars_(static_cast<StepScalars*>(backend.allocate_report(sizeof(StepScalars)))) {}
  ~PendingStep() { backend_.release_report(scalars_); }
  PendingStep(const PendingStep&) = delete;
  PendingStep& operator=(const PendingStep&) = delete;

  /// The time of the next step begins now.
  void begin_clock() { last_end_ns_ = backend_.now_ns(); }

  /// The last work of a step, which may be recorded into a graph.
  void copy_scalars(const StepScalars* scalars) {
    backend_.copy_report(backend_.stream(StreamKind::compute), scalars_, scalars,
                         sizeof(StepScalars));
  }
  /// All of a step has been enqueued; the one before has been read. `spans` are those of a step
  /// that runs again as it was recorded; null: the recorder has them.
  void begin_waiting(std::shared_ptr<EnqueuedReport> report, std::shared_ptr<const Spans> spans) {
    typename B::Stream& compute = backend_.stream(StreamKind::compute);
    backend_.mark(end_, compute);
    backend_.record(ended_, compute);
    spans_ = std::move(spans);
    report_ = std::move(report);
  }

  /// The report that is waited for; null if there is none.
  EnqueuedReport* report() const { return report_.get(); }
  typename B::Event& ended() { return ended_; }
  const Spans* spans() const { return spans_.get(); }

  /// What the scalars and the clock say. After ended() has been reached.
  void fill() {
    StepReport& report = report_->report;
    report.norm = scalars_->norm;
    report.skipped = scalars_->skipped != 0;
    report.clipped_norm =
        report.skipped ? report.norm : report.norm * static_cast<double>(scalars_->clip_factor);
    if (!report.skipped) ++updates_;
    report.step = updates_;
    const std::int64_t end_ns = backend_.time_ns(end_);
    report.step_ms = static_cast<double>(end_ns - last_end_ns_) / 1e6;
    last_end_ns_ = end_ns;
    report_->filled = true;
  }
  /// It has been read, or has failed and stays empty.
  void forget() {
    report_.reset();
    spans_.reset();
  }
  /// Times are read relative to the end of this step from now on.
  void keep_time() { backend_.keep_time(end_); }

 private:
  B& backend_;
  StepScalars* scalars_;
  typename B::Event ended_;
  typename B::Mark end_;
  std::shared_ptr<EnqueuedReport> report_;
  std::shared_ptr<const Spans> spans_;
  std::int64_t last_end_ns_ = 0;
  std::uint64_t updates_ = 0;
};

}  // namespace tessera::engine
