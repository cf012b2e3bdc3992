// What runs a program on some rows, compiled once for each instruction set.
#ifndef BRIDGE_INTERPRETER_MACHINE_H_
#define BRIDGE_INTERPRETER_MACHINE_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "interpreter/program.h"

namespace bridge::interpreter {

// Rows of one batch, and where their column sums go: of each result either a node of the tree, in
// the arithmetic type, or the rounded sum. Both null: the result is no column sum.
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
  const Sums* sums;       // one for each result; may be null without column sums
  uint32_t streamed = 0;  // a bit for each result: whether it may be written past the caches
};

// How the columns of rows are dealt to tasks, where there are too few rows to deal these.
struct ColumnSplit {
  int64_t tasks;  // at most so many at once; 1: nothing is dealt
  int64_t cols;   // of every part but the last: a power of two of chunks of row_sum_tree.h
  // Runs task(context, i) for every i below `tasks`, on any threads. It is compiled for every
  // processor, as what an instruction set has must not be what other code is linked to.
  void (*run)(const bridge_executor* executor, int64_t tasks, bridge_task task, void* context);
  const bridge_executor* executor;

  int64_t parts(const bridge_program& call) const {
    return tasks > 1 ? (call.cols + cols - 1) / cols : 1;
  }
};

// Adds the nodes of one level of the tree of column sums, `count` vectors of `cols` numbers side by
// side, up to the root, and rounds it into the output. Overwrites the nodes.
using AddNodes = void (*)(void* nodes, int64_t count, int64_t cols, const RoundedSums& output);

struct MachineTable {
  // Bytes of memory, aligned to 64, that a run needs for `rows` rows.
  size_t (*scratch_bytes)(const View& view, const bridge_program& call, int64_t rows,
                          const ColumnSplit& split);
  void (*run)(const View& view, const bridge_program& call, const Rows& rows,
              const ColumnSplit& split, void* scratch);
  AddNodes add_nodes;
};

struct Machines {
  MachineTable of[2];  // float, double
};

}  // namespace bridge::interpreter

namespace bridge {
using InterpreterMachines = interpreter::Machines;
BRIDGE_DECLARE_PER_ISA(InterpreterMachines, interpreter_machines)
}  // namespace bridge

#endif  // BRIDGE_INTERPRETER_MACHINE_H_
