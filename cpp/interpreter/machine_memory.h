// The scratch memory of the interpreter on the CPU. A part of machine.cpp.
#ifndef BRIDGE_INTERPRETER_MACHINE_MEMORY_H_
#define BRIDGE_INTERPRETER_MACHINE_MEMORY_H_

#include "cpu/tile.h"
#include "program/machine.h"
#include "tiles/column_parts.h"
#include "tiles/column_stack.h"
#include "tiles/draws.h"
#include "tiles/memory_parts.h"
#include "tiles/reductions.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using namespace interpreter;  // NOLINT: one name for the parts of a program

template <class Real>
struct MachineMemory {
  static constexpr int64_t kWidth = 2048 / sizeof(Real);  // elements of a register

  // The memory of one task, if columns are split over tasks.
  struct TaskMemory {
    Real* tiles;
    int64_t* integer_tiles;
    PiecewiseReduction<Real>* reductions;
    RandomWords* words;

    TaskMemory() = default;
    TaskMemory(MemoryParts& parts, const View& view) {
      tiles = parts.take<Real>(view.header.tiles * kWidth);
      integer_tiles = parts.take<int64_t>(view.header.integer_tiles * kWidth);
      reductions = parts.take<PiecewiseReduction<Real>>(view.header.reductions);
      words = parts.take<RandomWords>(keeps(view) ? 1 : 0);
    }
    // Copies the tile registers: constants and per-row values are in all their columns.
    void copy_tiles(const TaskMemory& from, const View& view) const {
      copy(tiles, from.tiles, view.header.tiles * kWidth);
      copy(integer_tiles, from.integer_tiles, view.header.integer_tiles * kWidth);
    }
  };

  Real* rows;
  int64_t* integer_rows;
  Real* sums[BRIDGE_MAX_PROGRAM_RESULTS];
  PartReduction<Real>* row_parts;
  int64_t part_count;
  TaskMemory own;
  MemoryParts tasks;  // where the tasks' memory begins

  MachineMemory(MemoryParts& parts, const View& view, const bridge_program& call, int64_t row_count,
                const ColumnSplit& split)
      : tasks(nullptr) {
    const Header& header = view.header;
    rows = parts.take<Real>(header.rows * kWidth);
    integer_rows = parts.take<int64_t>(header.integer_rows * kWidth);
    for (int32_t i = 0; i < header.results; ++i) {
      if (view.result_role(i) == Role::row)
        sums[i] = parts.take<Real>(ColumnStack<Real>::size(row_count, call.cols));
    }
    part_count = split.tasks > 1 ? split.parts(call) : 0;
    row_parts = parts.take<PartReduction<Real>>(header.reductions * part_count);
    own = TaskMemory(parts, view);
    tasks = parts;
    for (int64_t task = 0; part_count > 0 && task < split.tasks; ++task) TaskMemory(parts, view);
  }
  TaskMemory of_task(int64_t task, const View& view) const {
    MemoryParts parts = tasks;
    TaskMemory found(parts, view);
    for (; task > 0; --task) found = TaskMemory(parts, view);
    return found;
  }
  PartReduction<Real>& part_of_row(int32_t reduction, int64_t part) const {
    return row_parts[reduction * part_count + part];
  }

 private:
  static bool keeps(const View& view) {
    for (int32_t i = 0; i < view.instructions; ++i) {
      if ((view.code[i].operation & ~kAgain) == kKeep) return true;
    }
    return false;
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_INTERPRETER_MACHINE_MEMORY_H_
