// The columns of rows in parts, which tasks take one after the other, for the files that are
// compiled once for each instruction set: include it there only.
#ifndef BRIDGE_INTERPRETER_COLUMN_PARTS_H_
#define BRIDGE_INTERPRETER_COLUMN_PARTS_H_

#include <stdint.h>

#include "cpu/tile.h"
#include "interpreter/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

struct ColumnPart {
  int64_t number, begin, end;
};

// The parts that no task has taken yet. Tasks take them as they come to it: one that starts late
// finds the others at work.
class ColumnParts {
 public:
  ColumnParts(const interpreter::ColumnSplit& split, int64_t cols)
      : each_(split.cols), cols_(cols) {}

  // Calls run(part) for one part after the other until none is left.
  template <class Run>
  void take(const Run& run) {
    for (;;) {
      const int64_t number = __atomic_fetch_add(&taken_, 1, __ATOMIC_RELAXED);
      const int64_t begin = number * each_;
      if (begin >= cols_) return;
      run(ColumnPart{number, begin, smaller(begin + each_, cols_)});
    }
  }

 private:
  const int64_t each_, cols_;
  int64_t taken_ = 0;
};

// Calls run(task, parts) on threads for every task, which takes its parts from `parts`; returns
// when all parts have been run.
template <class Run>
void deal_columns(const interpreter::ColumnSplit& split, int64_t cols, const Run& run) {
  struct Job {
    const Run& run;
    ColumnParts parts;
  } job{run, {split, cols}};
  split.run(
      split.executor, split.tasks,
      [](void* context, int64_t task) {
        Job& job = *static_cast<Job*>(context);
        job.run(task, job.parts);
      },
      &job);
}

// Calls run(begin, end) for parts of the columns, on threads where these are dealt; else for all.
template <class Run>
void for_columns(const interpreter::ColumnSplit& split, int64_t cols, const Run& run) {
  if (split.tasks == 1) return run(int64_t{0}, cols);
  deal_columns(split, cols, [&](int64_t, ColumnParts& parts) {
    parts.take([&](const ColumnPart& part) { run(part.begin, part.end); });
  });
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_INTERPRETER_COLUMN_PARTS_H_
