// Division of columns into parts, which tasks take one after the other. Include it only in files
// compiled once for each instruction set.
#ifndef BRIDGE_TILES_COLUMN_PARTS_H_
#define BRIDGE_TILES_COLUMN_PARTS_H_

#include <stdint.h>

#include "cpu/task_ranges.h"
#include "cpu/tile.h"
#include "program/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

struct ColumnPart {
  int64_t number, begin, end;
};

// Calls run(task, parts) for every task, on several threads. parts(take) calls take(part) for one
// part after the other until none is left. Returns when all parts are done.
template <class Run>
void deal_columns(const interpreter::ColumnSplit& split, int64_t cols, const Run& run) {
  struct Job {
    const Run& run;
    int64_t cols, each;
    TaskRanges parts;
  } job{run, cols, split.cols, {}};
  job.parts.deal((cols + split.cols - 1) / split.cols, split.tasks);
  split.run(
      split.executor, split.tasks,
      [](void* context, int64_t task) {
        Job& job = *static_cast<Job*>(context);
        job.run(task, [&](const auto& take) {
          job.parts.take(task, [&](int64_t number) {
            const int64_t begin = number * job.each;
            take(ColumnPart{number, begin, smaller(begin + job.each, job.cols)});
          });
        });
      },
      &job);
}

// Calls run(begin, end) for each part of the columns, on several threads; once for all columns if
// they are not split.
template <class Run>
void for_columns(const interpreter::ColumnSplit& split, int64_t cols, const Run& run) {
  if (split.tasks == 1) return run(int64_t{0}, cols);
  deal_columns(split, cols, [&](int64_t, const auto& parts) {
    parts([&](const ColumnPart& part) { run(part.begin, part.end); });
  });
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_COLUMN_PARTS_H_
