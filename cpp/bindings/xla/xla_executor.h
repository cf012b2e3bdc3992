// XLA's own thread pool as an executor of the kernel library.
#ifndef BRIDGE_BINDINGS_XLA_XLA_EXECUTOR_H_
#define BRIDGE_BINDINGS_XLA_XLA_EXECUTOR_H_

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include <bridge/bridge.h>
#include <xla/ffi/api/ffi.h>

#include "cpu/spin.h"
#include "cpu/task_ranges.h"

namespace bridge::bindings {

// The pool can schedule but not join, and all its threads may be busy with handlers that wait as
// this one does. So the calling thread takes tasks too, and at the end waits only for tasks begun
// by workers. Closures that start later find no task and touch nothing but `Shared`.
class XlaExecutor {
 public:
  explicit XlaExecutor(xla::ffi::ThreadPool* pool) : pool_(pool) {}

  bridge_executor executor() {
    // The calling thread is one of the pool's, so it is not counted on top.
    return {this, static_cast<int32_t>(pool_->num_threads()), &XlaExecutor::run};
  }

 private:
  struct Shared {
    TaskRanges ranges;
    std::atomic<int64_t> done{0};
    int64_t tasks;
    bridge_task task;
    void* task_context;
    std::mutex mutex;
    std::condition_variable finished;

    Shared(int64_t count, int64_t threads, bridge_task run, void* context)
        : tasks(count), task(run), task_context(context) {
      ranges.deal(count, threads);
    }

    void work(int64_t thread) {
      ranges.take(thread, [this](int64_t i) {
        task(task_context, i);
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) {
          std::lock_guard<std::mutex> lock(mutex);
          finished.notify_all();
        }
      });
    }
  };

  static void run(void* context, int64_t tasks, bridge_task task, void* task_context) {
    auto* self = static_cast<XlaExecutor*>(context);
    const int64_t width = self->pool_->num_threads();
    const int64_t threads = tasks < width ? tasks : width;
    auto shared = std::make_shared<Shared>(tasks, threads, task, task_context);
    for (int64_t i = 1; i < threads; ++i) {
      self->pool_->Schedule([shared, i] { shared->work(i); });
    }
    shared->work(0);
    const auto is_done = [&] { return shared->done.load(std::memory_order_acquire) == tasks; };
    if (spin_until(kCallerSpin, is_done)) return;
    std::unique_lock<std::mutex> lock(shared->mutex);
    shared->finished.wait(lock, is_done);
  }

  xla::ffi::ThreadPool* pool_;
};

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_XLA_XLA_EXECUTOR_H_
