// Distribution of the tasks of a call to the threads that run them.
#ifndef BRIDGE_CPU_TASK_RANGES_H_
#define BRIDGE_CPU_TASK_RANGES_H_

#include <stdint.h>

namespace bridge {

// The first item of part `part` when `items` are divided evenly into `parts`; the end for part ==
// parts.
__attribute__((always_inline)) inline int64_t part_begin(int64_t items, int64_t parts,
                                                         int64_t part) {
  const int64_t each = items / parts, rest = items % parts;
  return part * each + (part < rest ? part : rest);
}

// Each thread begins with a range of its own, the same one in every call with as many tasks: the
// data it wrote in one call is in the caches of its core in the next. Then it takes tasks from the
// ranges of other threads, so that a thread that starts late does not delay the call.
//
// All functions are inlined, because files that are compiled for one instruction set use them too.
class TaskRanges {
 public:
  // Divides the tasks among `threads`, at least one, before any task is taken. Beyond kMost
  // threads, several share a range.
  __attribute__((always_inline)) void deal(int64_t tasks, int64_t threads) {
    tasks_ = tasks;
    ranges_ = threads < kMost ? threads : kMost;
    for (int64_t i = 0; i < ranges_; ++i) next_[i].task = part_begin(tasks_, ranges_, i);
  }

  // Calls run(task) for one task after another until none is left. `thread` is any number that
  // differs between the threads of a call and stays the same from call to call.
  template <class Run>
  __attribute__((always_inline)) void take(int64_t thread, const Run& run) {
    for (int64_t i = 0; i < ranges_; ++i) {
      const int64_t range = (thread + i) % ranges_;
      const int64_t end = part_begin(tasks_, ranges_, range + 1);
      // A thread only reads the counter of a finished range, and many threads can read at once.
      while (__atomic_load_n(&next_[range].task, __ATOMIC_RELAXED) < end) {
        const int64_t task = __atomic_fetch_add(&next_[range].task, 1, __ATOMIC_RELAXED);
        if (task < end) run(task);
      }
    }
  }

 private:
  static constexpr int64_t kMost = 32;

  struct alignas(64) Next {
    int64_t task;
  };

  int64_t tasks_, ranges_;
  Next next_[kMost];
};

}  // namespace bridge

#endif  // BRIDGE_CPU_TASK_RANGES_H_
