// Backends whose caller runs ahead of the compute stream, as on a GPU: here the host's, which says
// that it is one. Reports are read later, or not at all; the numbers are those of any other.
#include <chrono>
#include <stdexcept>

#include "support.hpp"

using namespace engine_test;

namespace {

struct DeferringHost : ts::HostRuntime {
  using ts::HostRuntime::HostRuntime;
  static constexpr bool defers = true;
  static constexpr std::uint64_t norm_window = 16;  // partials are planned, and not used

  bool capturing() const { return captures; }
  bool captures = false;  // work is done all the same: only the engine's own state is looked at
};

struct Deferring {
  using Runtime = DeferringHost;
  using Communicator = ts::InProcess;
};
static_assert(ts::Backend<Deferring>);

template <class Backend, class Strategy = ts::Zero3<>>
class Net {
 public:
  using Model = ts::Shard<Strategy, ts::OnDevice, ts::Fp32, Backend>;

  Net(typename Backend::Communicator ranks, ts::Options options, ts::HostOptions host = {})
      : weights_(3),
        model(ts::Mesh<Backend>(ranks, host), ts::AdamW{.learning_rate = 0.1f},
              (options.clip_norm = 2, options)) {
    for (std::size_t u = 0; u < weights_.size(); ++u) {
      units_.push_back(model.add_unit(std::to_string(u), ts::tensor(weights_[u], {700})));
    }
    model.materialize([](const ts::TensorInfo& info, std::uint64_t index) {
      return first_value(info.id, index);
    });
  }
  ts::StepTicket<Backend> step(float first = 0.5f) {
    for (ts::Unit unit : units_) auto lease = model.forward(unit);
    for (std::size_t u = units_.size(); u-- > 0;) {
      auto lease = model.backward(units_[u]);
      const auto gradient = lease.gradient(weights_[u]);
      for (std::uint64_t i = 0; i < gradient.size; ++i) {
        gradient.data[i] =
            gradient_at(model.rank(), 0, static_cast<std::uint32_t>(u), i, weights_[u][i]);
      }
      gradient.data[0] = first;
    }
    return model.step();
  }

 private:
  std::vector<float*> weights_;
  std::vector<ts::Unit> units_;

 public:
  Model model;
};

}  // namespace

TEST_CASE("deferred reports: the same numbers as at once, read late, in any order, or never") {
  for (bool trace : {false, true}) {
    ts::run_ranks(2, [&](ts::InProcess ranks) {
      ts::InProcess others = ranks.channel();
      Net<ts::Host> at_once(ranks, {.trace = trace});
      Net<Deferring> deferred(others, {.trace = trace});
      std::vector<ts::StepReport> reports;
      std::vector<ts::StepTicket<Deferring>> tickets;
      for (int s = 0; s < 6; ++s) {
        at_once.model.set_learning_rate(0.1f / static_cast<float>(1 + s));
        deferred.model.set_learning_rate(0.1f / static_cast<float>(1 + s));
        const float first = s == 3 ? __builtin_inff() : 0.5f;
        reports.push_back(at_once.step(first).get());
        tickets.push_back(deferred.step(first));
        if (s == 4) (void)tickets.back().get();
      }
      for (std::size_t s = tickets.size(); s-- > 0;) {
        const ts::StepReport& late = tickets[s].get();
        CHECK(late.norm == reports[s].norm);
        CHECK(late.clipped_norm == reports[s].clipped_norm);
        CHECK(late.skipped == reports[s].skipped);
        CHECK(late.step == reports[s].step);
        CHECK(late.learning_rate == reports[s].learning_rate);
        CHECK(late.step_ms > 0);
        CHECK(late.communication_ms > 0);
      }
      CHECK(deferred.model.parameters_digest() == at_once.model.parameters_digest());
      CHECK(deferred.model.moments_digest() == at_once.model.moments_digest());
      if (!trace) return;
      CHECK(events(deferred.model.trace(), {"forward", "backward", "gather", "reduce"}) ==
            events(at_once.model.trace(), {"forward", "backward", "gather", "reduce"}));
    });
  }
}

TEST_CASE("without a trace few timestamps are taken, and what is exposed is still found") {
  ts::HostOptions slow;
  slow.gather_delay = std::chrono::milliseconds(20);
  ts::run_ranks(2, [&](ts::InProcess ranks) {
    Net<Deferring> net(ranks, {.schedule = ts::Schedule::sequential, .prefetch_depth = 0}, slow);
    (void)net.step().get();
    const ts::StepReport report = net.step().get();
    CHECK(report.exposed_ms >= 6 * 20 * 0.9);  // six gathers, none beside compute
    CHECK(report.exposed_ms < 6 * 20 * 1.5);
    CHECK(report.communication_ms < 6 * 20);
    CHECK(report.compute_ms >= 0);
    CHECK(report.compute_ms < report.step_ms);
  });
}

TEST_CASE("deferred: after an exception in a lease and reset() the next reports are right") {
  ts::run_ranks(2, [](ts::InProcess ranks) {
    Net<Deferring> net(ranks, {});
    (void)net.step();
    for (int round = 0; round < 3; ++round) {
      try {
        const auto lease = net.model.forward({0});
        throw std::runtime_error("boom");
      } catch (const std::exception&) {
      }
      net.model.reset();
    }
    {
      auto evaluating = net.model.evaluate();
      for (std::uint32_t u = 0; u < 3; ++u) auto lease = net.model.forward({u});
    }
    const ts::StepReport report = net.step().get();
    CHECK(report.exposed_ms <= report.step_ms);
    CHECK(report.compute_ms <= report.step_ms);
  });
}

TEST_CASE(
    "a captured step gathers all it uses, whatever was gathered before; replays make it stale") {
  ts::run_ranks(2, [](ts::InProcess ranks) {
    Net<Deferring, ts::Zero2> net(ranks, {});
    auto& core = net.model.core();
    CHECK_SAYS(error_of([&] { core.begin_capture(); }), "after it has run once");
    for (int s = 0; s < 2; ++s) (void)net.step().get();
    const auto evaluate = [&] {
      const auto before = core.context().gather_comm.counts();
      {
        auto evaluating = net.model.evaluate();
        for (std::uint32_t u = 0; u < 3; ++u) auto lease = net.model.forward({u});
      }
      auto all = core.context().gather_comm.counts();
      all -= before;
      return all[ts::CollectiveKind::all_gather].count;
    };
    CHECK(evaluate() == 3);
    CHECK(evaluate() == 0);  // Zero2 keeps them until the next step
    core.begin_capture();
    core.context().backend.captures = true;
    (void)net.step();
    core.context().backend.captures = false;
    const auto captured = core.capture().end();
    CHECK(captured.collectives == net.model.plan().collectives);
    CHECK(evaluate() == 3);
    const auto report = core.replay(captured, [] {});
    CHECK(evaluate() == 3);
    core.resolve(*report);
    CHECK(report->report.collectives == captured.collectives);
    CHECK(net.step().get().step == 4);  // what was replayed here did nothing but count
    {                                   // gradients of leases outside are not lost to a replay
      auto lease = net.model.backward({0});
    }
    CHECK_SAYS(error_of([&] { core.replay(captured, [] {}); }), "call step() first");
  });
}

TEST_CASE("a capture that is cancelled: the next plain steps are those of a Shard without it") {
  ts::run_ranks(2, [](ts::InProcess ranks) {
    ts::InProcess others = ranks.channel();
    Net<Deferring> net(ranks, {}), plain(others, {});
    auto& core = net.model.core();
    for (int s = 0; s < 2; ++s) {
      (void)net.step();
      (void)plain.step();
    }
    core.begin_capture();
    core.context().backend.captures = true;
    for (std::uint32_t u = 0; u < 3; ++u) auto lease = net.model.forward({u});
    for (std::uint32_t u = 3; u-- > 1;) auto lease = net.model.backward({u});
    core.context().backend.captures = false;
    CHECK_SAYS(error_of([&] { (void)core.capture().end(); }), "must call step()");
    core.capture().cancel();
    for (int s = 0; s < 2; ++s) CHECK(net.step().get().norm == plain.step().get().norm);
    CHECK(net.model.parameters_digest() == plain.model.parameters_digest());
  });
}

TEST_CASE("the room spared for slots need not be a multiple of anything") {
  for (std::uint64_t spare : {1u, 100u, 4097u}) {
    ts::run_ranks(2, [&](ts::InProcess ranks) {
      Net<Deferring> net(ranks, {.spare_slot_bytes = spare});
      CHECK(!net.step().get().skipped);
      CHECK(net.model.plan().total_bytes() % 64 == 0);
    });
  }
}
