// Programs compiled ahead of time, by the build. cmake/write_hot_programs.py writes their table.
#ifndef BRIDGE_INTERPRETER_HOT_PROGRAMS_H_
#define BRIDGE_INTERPRETER_HOT_PROGRAMS_H_

#include "cpu/isa.h"
#include "interpreter/machine.h"

namespace bridge::interpreter {

struct HotProgram {
  const int32_t* words;
  int64_t count;
  const int32_t* dtypes;  // of operands, then of results
  const int32_t* free;    // indices of the constants that are read from a call's bytecode
  int64_t free_count;
  const MachineTable* machine[kIsas];  // null for an instruction set that it was not compiled for
};

struct HotPrograms {
  const HotProgram* programs;
  int count;
};

HotPrograms hot_programs();

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_HOT_PROGRAMS_H_
