// In-order streams and events on the host: a worker thread a stream, blocking waits, no spinning.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

/// An event of the host backend. Recorded by a stream's worker, waited for by others. Reusable:
/// a wait refers to the latest record that was enqueued before it.
class HostEvent {
 public:
  HostEvent() = default;
  HostEvent(const HostEvent&) = delete;
  HostEvent& operator=(const HostEvent&) = delete;

  /// The caller announces a record and gets its number; the stream later reaches it.
  std::uint64_t announce() { return ++announced_; }
  /// The number a wait enqueued now refers to. 0: never recorded.
  std::uint64_t announced() const { return announced_; }

  void reach(std::uint64_t number) {
    {
      const std::lock_guard lock(mutex_);
      early_.push_back(number);
      for (std::size_t i = 0; i < early_.size();) {
        if (early_[i] != reached_ + 1) {
          ++i;
          continue;
        }
        ++reached_;
        early_[i] = early_.back();
        early_.pop_back();
        i = 0;
      }
    }
    changed_.notify_all();
  }
  void wait_for(std::uint64_t number) {
    if (number == 0) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return reached_ >= number || std::find(early_.begin(), early_.end(), number) != early_.end();
    });
  }

 private:
  std::uint64_t announced_ = 0;  // caller's thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t reached_ = 0;         // and all numbers below it
  std::vector<std::uint64_t> early_;  // by a stream that overtook the one of an earlier record
};

/// An in-order stream. A side stream runs its work on a thread of its own; the compute stream runs
/// it on the caller's thread, inside enqueue.
///
/// Work that throws fails the stream: the first exception is kept for check(), later work is
/// skipped, but events are still reached, so that nobody waits for ever.
class HostStream {
 public:
  enum class Where { caller, worker };

  explicit HostStream(Where where, std::chrono::microseconds jitter = {}, std::uint64_t seed = 0)
      : where_(where), jitter_(jitter), random_(seed * 2 + 1) {
    if (where_ == Where::worker) worker_ = std::thread([this] { run(); });
  }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  /// Runs what is enqueued, then ends the worker.
  ~HostStream() {
    if (where_ == Where::caller) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  /// Skipped once the stream has failed. On the compute stream exceptions reach the caller.
  void enqueue(std::function<void()> work) { push(std::move(work), false); }
  /// Runs even on a failed stream; must not throw.
  void enqueue_always(std::function<void()> work) { push(std::move(work), true); }

  /// Blocks the caller until everything enqueued has run.
  void synchronize() {
    if (where_ == Where::caller) return;
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
  }

  /// Throws the first exception of this stream's work, again at every call until reset().
  void check() {
    if (where_ == Where::caller) return;
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  void reset() {
    synchronize();
    const std::lock_guard lock(mutex_);
    failure_ = nullptr;
  }

 private:
  struct Task {
    std::function<void()> work;
    bool always;
  };

  void push(std::function<void()> work, bool always) {
    if (where_ == Where::caller) {
      work();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), always});
    }
    changed_.notify_one();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Task task = std::move(queue_.front());
      queue_.pop_front();
      const bool skip = failure_ && !task.always;
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      if (!skip) {
        if (jitter_.count() > 0) delay();
        try {
          task.work();
        } catch (...) {
          failure = std::current_exception();
        }
      }
      task.work = nullptr;  // what the closure holds is released before the stream reads as idle
      lock.lock();
      if (failure && !failure_) failure_ = failure;
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
    }
  }

  // The delayed-stream test mode: any order of streams that the waits allow should come up.
  void delay() {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    const auto most = static_cast<std::uint64_t>(jitter_.count()) + 1;
    std::this_thread::sleep_for(std::chrono::microseconds((random_ >> 33) % most));
  }

  const Where where_;
  const std::chrono::microseconds jitter_;
  std::uint64_t random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::deque<Task> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace tessera
