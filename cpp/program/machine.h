// Entry points that run a program on some rows, compiled once for each instruction set.
#ifndef BRIDGE_PROGRAM_MACHINE_H_
#define BRIDGE_PROGRAM_MACHINE_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "program/program.h"

namespace bridge::interpreter {

// Rows of one batch, and the destinations of their column sums. Each result has either a node of
// the tree, in the arithmetic type, or the rounded sum; if both are null, the result is no column
// sum.
struct RoundedSums {
  char* data;
  int32_t dtype;
};
struct Sums {
  void* node;
  RoundedSums output;
};
struct Rows {
  int64_t batch;
  int64_t first;
  int64_t count;
  const Sums* sums;       // one for each result; may be null if there are no column sums
  uint32_t streamed = 0;  // bit i: result i may be written past the caches
};

// The distribution of the columns of rows over tasks, for calls with too few rows to distribute.
struct ColumnSplit {
  int64_t tasks;  // upper bound of tasks at once; 1: columns are not split
  int64_t cols;   // of every part but the last: a power of two of chunks (row_sum_tree.h)
  // Runs task(context, i) for every i below `tasks`, on any threads. The function is compiled for
  // every processor: an inline function compiled for one instruction set must not be the copy that
  // other code links to.
  void (*run)(const bridge_executor* executor, int64_t tasks, bridge_task task, void* context);
  const bridge_executor* executor;

  int64_t parts(const bridge_program& call) const {
    return tasks > 1 ? (call.cols + cols - 1) / cols : 1;
  }
};

// Adds `count` adjacent nodes of one level of the column-sum tree, vectors of `cols` numbers, up to
// the root, and rounds the root into the output. Overwrites the nodes.
using AddNodes = void (*)(void* nodes, int64_t count, int64_t cols, const RoundedSums& output);

struct MachineTable {
  // Returns the scratch memory (bytes) for a run over `rows` rows, with room to align it to 64
  // bytes.
  size_t (*scratch_bytes)(const View& view, const bridge_program& call, int64_t rows,
                          const ColumnSplit& split);
  void (*run)(const View& view, const bridge_program& call, const Rows& rows,
              const ColumnSplit& split, void* scratch);
  AddNodes add_nodes;
  // Kernels written by hand set both. They take whole rows only; and their large results go past
  // the caches, however much arithmetic the program has.
  bool has_whole_rows = false;
  bool is_light = false;
};

struct Machines {
  MachineTable of[2];  // float, double
};

}  // namespace bridge::interpreter

namespace bridge {
using InterpreterMachines = interpreter::Machines;
BRIDGE_DECLARE_PER_ISA(InterpreterMachines, interpreter_machines)
}  // namespace bridge

#endif  // BRIDGE_PROGRAM_MACHINE_H_
