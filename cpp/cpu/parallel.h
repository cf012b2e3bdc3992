// Division of work among the threads of a bridge_executor.
#ifndef BRIDGE_CPU_PARALLEL_H_
#define BRIDGE_CPU_PARALLEL_H_

#include <bridge/bridge.h>

#include "cpu/float_environment.h"
#include "cpu/task_ranges.h"

namespace bridge {

// Returns the number of threads worth waking for `elements` elements: one more for every 32 Ki.
// Waking a sleeping thread takes about as long as one core needs for that many elements in cache.
inline int64_t threads_for(int64_t elements, const bridge_executor* executor) {
  if (executor == nullptr || executor->run == nullptr || executor->threads <= 1) return 1;
  const int64_t worth = elements >> 15;
  return worth <= 1 ? 1 : worth < executor->threads ? worth : executor->threads;
}

// Returns the number of parts to cut the work into: several for each thread, so that a thread that
// starts late does not delay the call.
inline int64_t parts_for(int64_t elements, const bridge_executor* executor) {
  const int64_t threads = threads_for(elements, executor);
  return threads > 1 ? 4 * threads : 1;
}

// Runs body(i) for every i in [0, tasks), each under IEEE arithmetic. body must not throw. A single
// task runs in the calling thread, without the executor.
template <class Body>
void parallel_for(const bridge_executor* executor, int64_t tasks, const Body& body) {
  if (tasks <= 1 || executor == nullptr || executor->run == nullptr || executor->threads <= 1) {
    const FloatEnvironment ieee;
    for (int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  executor->run(
      executor->context, tasks,
      [](void* context, int64_t index) {
        const FloatEnvironment ieee;
        (*static_cast<const Body*>(context))(index);
      },
      const_cast<Body*>(&body));
}

// Runs body(i) for every i in [0, items), divided evenly and in order among at most `parts` tasks.
template <class Body>
void parallel_for_parts(const bridge_executor* executor, int64_t items, int64_t parts,
                        const Body& body) {
  const int64_t tasks = items < parts ? items : parts;
  parallel_for(executor, tasks, [&](int64_t task) {
    const int64_t end = part_begin(items, tasks, task + 1);
    for (int64_t i = part_begin(items, tasks, task); i < end; ++i) body(i);
  });
}

}  // namespace bridge

#endif  // BRIDGE_CPU_PARALLEL_H_
