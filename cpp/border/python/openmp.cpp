// Why a framework's threads: an OpenMP worker that has finished a matrix product looks out for its
// next job for milliseconds before it sleeps. Threads beside it would share its core.
#include "border/python/openmp.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

namespace bridge::border {
namespace {

// The call that a compiler makes of `#pragma omp parallel`.
using GompParallel = void (*)(void (*region)(void*), void* data, unsigned threads, unsigned flags);

std::atomic<GompParallel> runtime{nullptr};

// OpenMP's workers do not live on in a child of fork, and GNU's runtime waits for them for ever.
void forget() { runtime.store(nullptr); }
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget);

struct Job {
  bridge_task task;
  void* context;
  int64_t tasks;
  std::atomic<int64_t> next{0};
};

// What every thread of the team does. The runtime may give fewer threads than were asked for.
void take_tasks(void* data) {
  Job& job = *static_cast<Job*>(data);
  for (;;) {
    const int64_t i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.tasks) return;
    job.task(job.context, i);
  }
}

void run_on_openmp(void* context, int64_t tasks, bridge_task task, void* task_context) {
  const auto width = static_cast<int64_t>(reinterpret_cast<intptr_t>(context));
  Job job{task, task_context, tasks};
  const GompParallel parallel = runtime.load();
  if (parallel == nullptr || tasks <= 1)
    take_tasks(&job);
  else
    parallel(take_tasks, &job, static_cast<unsigned>(std::min(width, tasks)), 0);
}

}  // namespace

void use_openmp(std::uintptr_t gomp_parallel) {
  runtime.store(reinterpret_cast<GompParallel>(gomp_parallel));
}

bridge_executor cpu_executor(int32_t threads) {
  if (runtime.load() == nullptr || threads <= 1) return bridge_pool(threads);
  return {reinterpret_cast<void*>(static_cast<intptr_t>(threads)), threads, run_on_openmp};
}

}  // namespace bridge::border
