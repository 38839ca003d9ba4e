// A step that is recorded rather than run, to be run again and again: what the engine's own state
// must be before, and is afterwards. How work is recorded is the backend's (cuda/graph.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/gather.hpp"
#include "tessera/engine/leases.hpp"
#include "tessera/engine/pending_step.hpp"
#include "tessera/engine/reduce.hpp"
#include "tessera/engine/step.hpp"

namespace tessera::engine {

template <Runtime B>
struct CapturedStep {
  std::shared_ptr<const typename Recorder<B>::Spans> spans;
  CollectiveCounts collectives;
  std::vector<unsigned char> included;  ///< by unit: it has gradients in the step
};

template <Backend Bk>
class Capture {
 public:
  using B = typename Bk::Runtime;

  Capture(Context<Bk>& context, Gathering<Bk>& gathering, Reducing<Bk>& reducing,
          Leases<Bk>& leases, Stepping<Bk>& stepping)
      : c_(context),
        gathering_(gathering),
        reducing_(reducing),
        leases_(leases),
        stepping_(stepping) {}

  /// Between steps, with nothing under way: what is gathered is given back, so that the recorded
  /// step gathers all that it uses.
  void begin() {
    require_between_steps("a capture");
    give_back_gathered();
    report_.reset();
    if (!c_.options.trace) c_.recorder.pause();
  }
  /// The step that is being recorded calls step().
  void note(std::shared_ptr<EnqueuedReport> report) { report_ = std::move(report); }

  /// The recording has ended. Error unless it held one step, in the expected order.
  CapturedStep<B> end() {
    c_.recorder.resume();
    const std::shared_ptr<EnqueuedReport> report = std::exchange(report_, nullptr);
    if (report == nullptr) {
      detail::fail("tessera: a captured step must call step(), once and at its end");
    }
    if (report->report.order_changed) {
      detail::fail(
          "tessera: the captured step leases its units in another order than the step "
          "before: run it once as it is, then capture it");
    }
    using Spans = typename Recorder<B>::Spans;
    return {std::make_shared<const Spans>(c_.recorder.take_ended()), report->report.collectives,
            stepping_.included()};
  }
  /// What was recorded is not wanted: nothing of it was done.
  void cancel() {
    c_.recorder.resume();
    report_.reset();
    forget_work();
  }

  /// Before the recorded step runs: plain work is done with, and what it gathered is given back,
  /// since the recorded step writes where it likes.
  void before_replay(const CapturedStep<B>& captured) {
    require_between_steps("a replay");
    give_back_gathered();
    stepping_.restore_included(captured.included);
  }
  void after_replay() { c_.note_update(); }

  /// Nothing is leased, gathered ahead, held or reduced any more.
  void forget_work() {
    gathering_.forget_issued();
    gathering_.drop_prefetched();
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) gathering_.reshard(u);
    reducing_.forget();
    stepping_.forget_included();
    c_.recorder.truncate(0);
    leases_.restart();
  }

 private:
  void require_between_steps(const char* what) const {
    leases_.require_none(what);
    if (c_.accumulating || c_.evaluating) {
      detail::fail("tessera: ", what, " inside ", c_.accumulating ? "accumulate()" : "evaluate()",
                   ": end that first");
    }
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (!c_.units[u].gradients_held && !c_.units[u].reduced) continue;
      detail::fail("tessera: ", what, " while unit '", c_.registry.unit(u).name,
                   "' has gradients of leases outside it: call step() first");
    }
  }
  void give_back_gathered() {
    leases_.quiesce();
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) gathering_.reshard(u);
  }

  Context<Bk>& c_;
  Gathering<Bk>& gathering_;
  Reducing<Bk>& reducing_;
  Leases<Bk>& leases_;
  Stepping<Bk>& stepping_;
  std::shared_ptr<EnqueuedReport> report_;
};

}  // namespace tessera::engine
