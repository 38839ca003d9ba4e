// The engine of one rank: its parts put together, steps, scopes and faults. Not a template of the
// policies: shard.hpp puts the typed shell around it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine/capture.hpp"
#include "tessera/engine/context.hpp"
#include "tessera/engine/equal_states.hpp"
#include "tessera/engine/gather.hpp"
#include "tessera/engine/leases.hpp"
#include "tessera/engine/materialize.hpp"
#include "tessera/engine/pending_step.hpp"
#include "tessera/engine/reduce.hpp"
#include "tessera/engine/states.hpp"
#include "tessera/engine/step.hpp"
#include "tessera/engine/update_rule.hpp"

namespace tessera::engine {

template <Backend Bk>
class Core {
 public:
  using B = typename Bk::Runtime;

  Core(Mesh<Bk> mesh, const PolicyDescription& policy, Options options,
       std::unique_ptr<UpdateRule<B>> rule, float learning_rate)
      : rule_((options.validate(), std::move(rule))),
        c_(mesh, policy, options, requirements(*rule_, options)),
        states_(c_),
        materializing_(c_, states_),
        gathering_(c_),
        reducing_(c_),
        leases_(c_, gathering_, reducing_),
        stepping_(c_, gathering_, reducing_, *rule_),
        capture_(c_, gathering_, reducing_, leases_, stepping_),
        pending_(c_.backend),
        learning_rate_(learning_rate),
        exceptions_(std::uncaught_exceptions()) {}

  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  ~Core() {
    // Left by an exception: the other ranks must not wait for this one.
    if (std::uncaught_exceptions() > exceptions_) abort("its Shard was left by an exception");
    // A peer that is gone ends the wait by the time-out, after which nothing is waited for.
    try {
      c_.await(c_.gathering());
      c_.await(c_.reducing());
    } catch (...) {  // who waits for a report has been told, or will be
    }
    try {
      c_.backend.synchronize(c_.gathering());
      c_.backend.synchronize(c_.reducing());
    } catch (...) {  // a device that is lost
    }
    // The tensors are left alone: outside leases they point at null already, and a trainer may
    // well have destroyed them first.
    c_.release_memory();
  }

  Context<Bk>& context() { return c_; }
  const Context<Bk>& context() const { return c_; }
  Materializing<Bk>& materializing() { return materializing_; }
  States<Bk>& states() { return states_; }
  Reducing<Bk>& reducing() { return reducing_; }
  void set_learning_rate(float rate) {
    if (!detail::is_non_negative(rate)) {
      detail::fail("tessera: the learning rate must be finite and not negative, not ", rate);
    }
    learning_rate_ = rate;
  }

  /// After materialize: what several ranks keep has to be the same on all of them.
  void check_equal() { EqualStates<Bk>(c_, states_).check(); }

  /// After that: the expected orders and their schedules.
  void start() {
    stepping_.start();
    leases_.start();
    last_counts_ = counts();
    pending_.begin_clock();
    c_.backend.check();
  }

  void open(std::uint32_t u, Phase phase, bool parameters) {
    const Enqueue timed(*this);
    require_materialized();
    c_.check();
    leases_.require_place(u, phase);
    // Where this rank's lease fails the others' may not, so that they would wait for it.
    try {
      leases_.open(u, phase, parameters);
    } catch (const std::exception& error) {
      abort_opening(u, error.what());
      throw;
    } catch (...) {
      abort_opening(u, "of an exception");
      throw;
    }
  }
  void close(std::uint32_t u, Phase phase, bool parameters) {
    const Enqueue timed(*this);
    leases_.close(u, phase, parameters);
  }

  /// A lease that is left by an exception: nothing is sent, the others fail at once.
  void abandon(std::uint32_t u, Phase phase) noexcept {
    abort("an exception left a lease of unit '" + c_.registry.unit(u).name + "'");
    leases_.release(u, phase);
  }

  /// The report is filled in by resolve(), or by the next step(); at once where nothing is
  /// deferred.
  std::shared_ptr<EnqueuedReport> step() {
    require_materialized();
    c_.check();
    check_step();
    resolve();
    auto report = std::make_shared<EnqueuedReport>();
    {
      const Enqueue timed(*this);
      c_.recorder.end_leases();
      reducing_.flush();
      leases_.quiesce();
      stepping_.run(learning_rate_);
      pending_.copy_scalars(stepping_.scalars());
      reducing_.retire_all();
      report->report.order_changed = leases_.end_step();
      c_.recorder.end_step();
      report->report.learning_rate = learning_rate_;
      if (!c_.backend.capturing()) pending_.begin_waiting(report, nullptr);
    }
    ++steps_;
    if (!B::defers) settle();
    note_counts(report->report);
    if (c_.backend.capturing()) capture_.note(report);
    if (!B::defers) resolve();
    return report;
  }

  /// Waits for the last step to end, and fills in its report.
  void resolve() {
    if (pending_.report() == nullptr) return;
    c_.await(pending_.ended());
    c_.check();
    StepReport& report = pending_.report()->report;
    if (pending_.spans() != nullptr) {
      c_.recorder.resolve(report, *pending_.spans());
    } else {
      c_.recorder.resolve(report);
    }
    if (!B::defers) {
      report.host_enqueue_us = std::max(0.0, report.host_enqueue_us - report.exposed_ms * 1e3);
    }
    pending_.fill();
    pending_.keep_time();
    pending_.forget();
  }
  /// The same for the report of a ticket, which may have been filled in long ago.
  void resolve(const EnqueuedReport& report) {
    if (report.filled) return;
    if (pending_.report() == &report) resolve();
    if (!report.filled) detail::fail("tessera: this step has failed: it has no report");
  }

  /// Nothing is under way when the recording of a step begins.
  void begin_capture() {
    require_materialized();
    if (steps_ == 0) {
      detail::fail(
          "tessera: a step is captured after it has run once as it is: then its kernels "
          "are loaded and its order is known");
    }
    c_.check();
    resolve();
    settle();
    last_counts_ = counts();
    capture_.begin();
  }
  Capture<Bk>& capture() { return capture_; }

  /// Runs a captured step once more: `launch()` enqueues what was recorded.
  template <class Launch>
  std::shared_ptr<EnqueuedReport> replay(const CapturedStep<B>& captured, Launch&& launch) {
    c_.check();
    resolve();
    auto report = std::make_shared<EnqueuedReport>();
    {
      const Enqueue timed(*this);
      capture_.before_replay(captured);
      stepping_.set_learning_rate(learning_rate_);
      launch();
      capture_.after_replay();
      pending_.begin_waiting(report, captured.spans);
    }
    ++steps_;
    report->report.learning_rate = learning_rate_;
    report->report.collectives = captured.collectives;
    report->report.peak_bytes = c_.peak_bytes;
    report->report.host_enqueue_us = static_cast<double>(std::exchange(enqueue_ns_, 0)) / 1e3;
    return report;
  }

  /// Gradients held unreduced are reduced now. Collective.
  void reduce_gradients() {
    const Enqueue timed(*this);
    require_materialized();
    c_.check();
    reducing_.reduce_held();
  }

  /// Gives a unit's gathered parameters back ahead of its rule.
  void reshard(std::uint32_t u) {
    require_materialized();
    if (c_.units[u].leases > 0) {
      detail::fail("tessera: reshard() of unit '", c_.registry.unit(u).name,
                   "' while a lease of it is open");
    }
    gathering_.reshard(u);
  }

  void begin_accumulation() {
    if (c_.accumulating) detail::fail("tessera: accumulate() inside accumulate()");
    c_.accumulating = true;
  }
  void end_accumulation() { c_.accumulating = false; }

  void begin_evaluation() {
    if (c_.evaluating) detail::fail("tessera: evaluate() inside evaluate()");
    leases_.require_none("evaluate()");
    leases_.begin_evaluation();
    records_before_evaluation_ = c_.recorder.count();
  }
  void end_evaluation() noexcept {
    try {
      leases_.end_evaluation();
      c_.await(c_.gathering());
      c_.await(c_.reducing());
      c_.recorder.truncate(records_before_evaluation_);
    } catch (const std::exception& error) {
      if (c_.broken.empty()) c_.broken = error.what();
    }
  }

  /// Sets a tensor's full values; what is gathered of its unit is stale then.
  void set_full(State state, const TensorRecord& tensor, std::span<const float> values) {
    require_materialized();
    if (c_.units[tensor.unit].leases > 0) {
      detail::fail("tessera: set_full() of '", tensor.info.name,
                   "' while a lease of its unit is open");
    }
    leases_.quiesce();
    states_.set_full(state, tensor, values);
    gathering_.reshard(tensor.unit);
  }

  /// Before a state is read: what is to be reduced of it is not left waiting in a bucket.
  void prepare_read(State state) {
    c_.check();
    if (state.kind == State::Kind::gradient) reducing_.flush();
  }

  /// Before this rank's part of a state is handed out: what has been gathered of it is stale then.
  void prepare_edit(State state, const TensorRecord& tensor) {
    c_.await(c_.reducing());
    const bool weights = state.kind == State::Kind::parameter || state.kind == State::Kind::master;
    if (!weights) return;
    if (c_.units[tensor.unit].leases > 0) {
      detail::fail("tessera: local() of the weights '", tensor.info.name,
                   "' while a lease of their unit is open");
    }
    leases_.quiesce();
    c_.expect_edit();
    gathering_.reshard(tensor.unit);
  }

  void abort(const std::string& reason) noexcept {
    try {
      const std::string why = "rank " + std::to_string(c_.mesh_rank()) + ": " + reason;
      if (c_.broken.empty()) c_.broken = why;
      c_.control.abort(why);
    } catch (...) {  // out of memory for a message: the time-out serves the others
    }
  }

  /// Collective: after a failure, back to the state of the last step. Leases must have ended.
  void reset() {
    leases_.require_none("reset()");
    c_.backend.synchronize(c_.gathering());
    c_.backend.synchronize(c_.reducing());
    c_.backend.reset();
    c_.control.reset();
    c_.gather_comm.reset();
    c_.reduce_comm.reset();
    c_.replica_comm.reset();
    c_.tensor_comm.reset();
    c_.broken.clear();
    c_.broken_elsewhere = false;
    c_.accumulating = c_.evaluating = false;
    capture_.forget_work();
    pending_.forget();
    last_counts_ = counts();
    pending_.begin_clock();
  }

  void require_materialized() const {
    if (c_.materialized) return;
    std::string names;
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      names += (names.empty() ? "" : ", ") + tensor.info.name;
    }
    detail::fail("tessera: materialize() has not been called: these tensors have no memory: ",
                 names);
  }

 private:
  // Host time in the library, without what compute waited for.
  class Enqueue {
   public:
    explicit Enqueue(Core& core) : core_(core), begin_(now()) {}
    ~Enqueue() { core_.enqueue_ns_ += now() - begin_; }

   private:
    Core& core_;
    std::int64_t begin_;
  };

  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void abort_opening(std::uint32_t u, const char* why) noexcept {
    try {
      abort("a lease of unit '" + c_.registry.unit(u).name + "' could not be opened: " + why);
    } catch (...) {  // as in abort()
    }
  }

  void check_step() const {
    leases_.require_none("step()");
    if (c_.accumulating) {
      detail::fail("tessera: step() inside accumulate(): end the accumulation first");
    }
    if (c_.evaluating) detail::fail("tessera: step() inside evaluate(): end the evaluation first");
    if (const std::string* name = reducing_.unreduced()) {
      detail::fail("tessera: step(): unit '", *name,
                   "' holds gradients that were not reduced: run the last backward outside "
                   "accumulate(), or call reduce_gradients()");
    }
  }

  CollectiveCounts counts() const {
    CollectiveCounts sum = c_.gather_comm.counts();
    sum += c_.reduce_comm.counts();
    sum += c_.replica_comm.counts();
    sum += c_.tensor_comm.counts();
    return sum;
  }

  static Requirements requirements(const UpdateRule<B>& rule, const Options& options) {
    return {rule.moment_count(), rule.rule_bytes(setting_count(options)), B::norm_window,
            Bk::Communicator::needs_reduce_scratch};
  }

  // Waits until the streams have done what they hold, and throws what went wrong.
  void settle() {
    c_.await(c_.gathering());
    c_.await(c_.reducing());
    c_.await(c_.compute());
    c_.check();
  }

  void note_counts(StepReport& report) {
    const CollectiveCounts all = counts();
    report.collectives = all;
    report.collectives -= last_counts_;
    last_counts_ = all;
    report.peak_bytes = c_.peak_bytes;
    report.host_enqueue_us = static_cast<double>(std::exchange(enqueue_ns_, 0)) / 1e3;
  }

  std::unique_ptr<UpdateRule<B>> rule_;
  Context<Bk> c_;
  States<Bk> states_;
  Materializing<Bk> materializing_;
  Gathering<Bk> gathering_;
  Reducing<Bk> reducing_;
  Leases<Bk> leases_;
  Stepping<Bk> stepping_;
  Capture<Bk> capture_;
  PendingStep<B> pending_;
  std::uint64_t steps_ = 0;  ///< enqueued
  float learning_rate_;
  CollectiveCounts last_counts_;
  std::int64_t enqueue_ns_ = 0;
  std::size_t records_before_evaluation_ = 0;
  int exceptions_;
};

}  // namespace tessera::engine
