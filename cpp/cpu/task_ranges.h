// How the tasks of a call are dealt to the threads that run them.
#ifndef BRIDGE_CPU_TASK_RANGES_H_
#define BRIDGE_CPU_TASK_RANGES_H_

#include <stdint.h>

namespace bridge {

// The first item of part `part` when `items` are dealt evenly to `parts` (part == parts: the end).
__attribute__((always_inline)) inline int64_t part_begin(int64_t items, int64_t parts,
                                                         int64_t part) {
  const int64_t each = items / parts, rest = items % parts;
  return part * each + (part < rest ? part : rest);
}

// Each thread begins with a range of its own, the same one in every call of as many tasks: what it
// wrote in one call is in the caches of its core in the next. Then it takes what the others have
// not come to, so that one that starts late does not hold up the call.
//
// All of it is inlined: it is used in files that are compiled for one instruction set, too.
class TaskRanges {
 public:
  // Before any is taken, to at least one thread; of more than kMost, several share a range.
  __attribute__((always_inline)) void deal(int64_t tasks, int64_t threads) {
    tasks_ = tasks;
    ranges_ = threads < kMost ? threads : kMost;
    for (int64_t i = 0; i < ranges_; ++i) next_[i].task = part_begin(tasks_, ranges_, i);
  }

  // Calls run(task) for one task after the other until none is left. `thread` is any number, which
  // tells the threads of a call apart and stays theirs from call to call.
  template <class Run>
  __attribute__((always_inline)) void take(int64_t thread, const Run& run) {
    for (int64_t i = 0; i < ranges_; ++i) {
      const int64_t range = (thread + i) % ranges_;
      const int64_t end = part_begin(tasks_, ranges_, range + 1);
      // Of a range that is done a thread only reads, which many can do at once.
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
