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

/// Brings a step's scalars back and tells when it has ended. One step at a time.
template <Runtime B>
class PendingStep {
 public:
  explicit PendingStep(B& backend)
      : backend_(backend),
        scalars_(static_cast<StepScalars*>(backend.allocate_report(sizeof(StepScalars)))) {}
  ~PendingStep() { backend_.release_report(scalars_); }
  PendingStep(const PendingStep&) = delete;
  PendingStep& operator=(const PendingStep&) = delete;

  /// The time of the next step begins now.
  void begin_clock() { last_end_ns_ = backend_.now_ns(); }

  /// The step's work has been enqueued; the one before has been read.
  std::shared_ptr<StepReport> end_step(const StepScalars* scalars) {
    typename B::Stream& compute = backend_.stream(StreamKind::compute);
    backend_.copy_report(compute, scalars_, scalars, sizeof(StepScalars));
    backend_.mark(end_, compute);
    return has_ended(nullptr);
  }
  /// The same of a step that runs again as it was recorded, with the spans it had then.
  std::shared_ptr<StepReport> has_ended(const typename Recorder<B>::Spans* spans) {
    backend_.record(ended_, backend_.stream(StreamKind::compute));
    spans_ = spans;
    report_ = std::make_shared<StepReport>();
    return report_;
  }

  /// Waits for the step to end; null if there is none to wait for.
  StepReport* wait() {
    if (report_ == nullptr) return nullptr;
    backend_.synchronize(ended_);
    return report_.get();
  }
  /// Null: the recorder has them.
  const typename Recorder<B>::Spans* spans() const { return spans_; }
  /// What the scalars and the clock say. After wait().
  void fill(StepReport& report) {
    report.norm = scalars_->norm;
    report.skipped = scalars_->skipped != 0;
    report.clipped_norm =
        report.skipped ? report.norm : report.norm * static_cast<double>(scalars_->clip_factor);
    if (!report.skipped) ++updates_;
    report.step = updates_;
    const std::int64_t end_ns = backend_.time_ns(end_);
    report.step_ms = static_cast<double>(end_ns - last_end_ns_) / 1e6;
    last_end_ns_ = end_ns;
  }
  /// It has been read, or has failed and stays empty.
  void forget() { report_.reset(); }

 private:
  B& backend_;
  StepScalars* scalars_;
  typename B::Event ended_;
  typename B::Mark end_;
  std::shared_ptr<StepReport> report_;
  const typename Recorder<B>::Spans* spans_ = nullptr;
  std::int64_t last_end_ns_ = 0;
  std::uint64_t updates_ = 0;
};

}  // namespace tessera::engine
