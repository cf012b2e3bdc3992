// bridge_pool: the library's own threads. A process has one pool, shared by all calls. A call that
// finds it taken (by another application thread, or by a call whose task makes this one) runs in
// its own thread.
#include <bridge/bridge.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cpu/spin.h"
#include "cpu/task_ranges.h"

namespace bridge {
namespace {

// Calls come in bursts, a few microseconds apart: a worker spins this long for the next job before
// it sleeps.
constexpr auto kWorkerSpin = std::chrono::microseconds(50);

// A sleep that costs the waking side nothing while nobody sleeps. The sleeper announces itself
// before it checks the condition, and the waker makes the condition true before it checks for
// sleepers. All accesses are sequentially consistent, so one of the two sees the other.
class Bell {
 public:
  template <class Condition>
  void wait(const Condition& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    while (!condition()) bell_.wait(lock);
    sleepers_.fetch_sub(1);
  }
  void ring(int64_t wanted) {
    if (sleepers_.load() == 0) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }
    for (int64_t i = 0; i < wanted; ++i) bell_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  std::atomic<int> sleepers_{0};
};

class Pool {
 public:
  // Runs all tasks on at most `width` threads, or returns false if the pool is taken.
  bool run(int64_t width, int64_t tasks, bridge_task task, void* context) {
    if (taken_.exchange(true, std::memory_order_acquire)) return false;
    const int64_t workers = start_workers((width < tasks ? width : tasks) - 1);
    task_ = task;
    context_ = context;
    tasks_.deal(tasks, workers + 1);
    left_.store(0, std::memory_order_relaxed);
    places_.store(workers);  // Publishes the job: a worker that takes a place sees all of it.
    work_.ring(workers);
    take_tasks(0);
    // Workers that did not wake in time are not awaited: their places are withdrawn.
    const int64_t joined = workers - places_.exchange(0);
    const auto all_left = [&] { return left_.load() == joined; };
    if (!spin_until(kCallerSpin, all_left)) done_.wait(all_left);
    taken_.store(false, std::memory_order_release);
    return true;
  }

 private:
  // Starts workers up to `wanted`, or fewer if the system refuses. Workers are detached and the
  // pool is never destroyed: at exit they sleep, and touch nothing that is torn down.
  int64_t start_workers(int64_t wanted) {
    try {
      for (; workers_ < wanted; ++workers_)
        std::thread([this, number = workers_ + 1] { work(number); }).detach();
    } catch (...) {
    }
    return workers_ < wanted ? workers_ : wanted;
  }

  void take_tasks(int64_t thread) {
    tasks_.take(thread, [this](int64_t task) { task_(context_, task); });
  }

  bool take_place() {
    int64_t places = places_.load();
    while (places > 0)
      if (places_.compare_exchange_weak(places, places - 1)) return true;
    return false;
  }

  [[noreturn]] void work(int64_t thread) {
    const auto offered = [this] { return places_.load() > 0; };
    for (;;) {
      if (!spin_until(kWorkerSpin, offered)) work_.wait(offered);
      if (!take_place()) continue;
      take_tasks(thread);
      left_.fetch_add(1);
      done_.ring(1);
    }
  }

  std::atomic<bool> taken_{false};
  int64_t workers_ = 0;  // Written by the holder of taken_.

  // The job. A worker reads it only between taking a place and adding itself to left_.
  bridge_task task_ = nullptr;
  void* context_ = nullptr;
  TaskRanges tasks_;
  alignas(64) std::atomic<int64_t> places_{0};  // Workers that may still join the job.
  alignas(64) std::atomic<int64_t> left_{0};    // Workers that have joined and finished.
  Bell work_;
  Bell done_;
};

std::atomic<Pool*> the_pool{nullptr};

// A forked child has none of its parent's threads, and its locks are in an unknown state. It makes
// a new pool and leaves the parent's copy alone.
void forget_pool() { the_pool.store(nullptr); }
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget_pool);

Pool* pool() {
  Pool* existing = the_pool.load();
  if (existing != nullptr) return existing;
  Pool* made = new (std::nothrow) Pool;
  if (made == nullptr) return nullptr;
  if (the_pool.compare_exchange_strong(existing, made)) return made;
  delete made;
  return existing;
}

void run_on_pool(void* context, int64_t tasks, bridge_task task, void* task_context) {
  const int64_t width = static_cast<int64_t>(reinterpret_cast<intptr_t>(context));
  if (width > 1 && tasks > 1) {
    Pool* shared = pool();
    if (shared != nullptr && shared->run(width, tasks, task, task_context)) return;
  }
  for (int64_t i = 0; i < tasks; ++i) task(task_context, i);
}

}  // namespace
}  // namespace bridge

extern "C" bridge_executor bridge_pool(int32_t threads) {
  if (threads < 1) threads = 1;
  return {reinterpret_cast<void*>(static_cast<intptr_t>(threads)), threads, bridge::run_on_pool};
}
