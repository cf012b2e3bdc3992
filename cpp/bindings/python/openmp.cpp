// Kernels run on the OpenMP threads of a framework, because a worker that has finished a matrix
// product spins for milliseconds before it sleeps. Other threads would share its core.
#include "bindings/python/openmp.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "cpu/task_ranges.h"

namespace bridge::bindings {
namespace {

// The function that a compiler calls for `#pragma omp parallel`.
using GompParallel = void (*)(void (*region)(void*), void* data, unsigned threads, unsigned flags);

// Returns the index of the calling thread in its team.
using ThreadNumber = int (*)();

std::atomic<GompParallel> runtime{nullptr};
std::atomic<ThreadNumber> thread_number{nullptr};

// OpenMP's workers do not exist in a child of fork, and GNU's runtime would wait for them forever.
void forget() { runtime.store(nullptr); }
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget);

struct Job {
  bridge_task task;
  void* context;
  ThreadNumber number;
  TaskRanges tasks;
};

// Runs on every thread of the team, which may have fewer threads than requested.
void take_tasks(void* data) {
  Job& job = *static_cast<Job*>(data);
  job.tasks.take(job.number(), [&](int64_t task) { job.task(job.context, task); });
}

void run_on_openmp(void* context, int64_t tasks, bridge_task task, void* task_context) {
  const auto width = static_cast<int64_t>(reinterpret_cast<intptr_t>(context));
  const GompParallel parallel = runtime.load();
  if (parallel == nullptr || tasks <= 1) {
    for (int64_t i = 0; i < tasks; ++i) task(task_context, i);
    return;
  }
  const int64_t threads = std::min(width, tasks);
  Job job{task, task_context, thread_number.load(), {}};
  job.tasks.deal(tasks, threads);
  parallel(take_tasks, &job, static_cast<unsigned>(threads), 0);
}

}  // namespace

void use_openmp(std::uintptr_t gomp_parallel, std::uintptr_t omp_get_thread_num) {
  thread_number.store(reinterpret_cast<ThreadNumber>(omp_get_thread_num));
  runtime.store(omp_get_thread_num == 0 ? nullptr : reinterpret_cast<GompParallel>(gomp_parallel));
}

bridge_executor cpu_executor(int32_t threads) {
  if (runtime.load() == nullptr || threads <= 1) return bridge_pool(threads);
  return {reinterpret_cast<void*>(static_cast<intptr_t>(threads)), threads, run_on_openmp};
}

}  // namespace bridge::bindings
