// Programs compiled ahead of time, by the build. cmake/write_ahead_of_time.py writes their table.
#ifndef BRIDGE_GENERATED_CPU_AHEAD_OF_TIME_H_
#define BRIDGE_GENERATED_CPU_AHEAD_OF_TIME_H_

#include "cpu/isa.h"
#include "program/machine.h"

namespace bridge::interpreter {

struct AheadOfTimeProgram {
  const int32_t* words;
  int64_t count;
  const int32_t* dtypes;  // of operands, then of results
  const int32_t* free;    // indices of the constants that are read from a call's bytecode
  int64_t free_count;
  const MachineTable* machine[kIsas];  // null for an instruction set that it was not compiled for
};

struct AheadOfTimePrograms {
  const AheadOfTimeProgram* programs;
  int count;
};

AheadOfTimePrograms ahead_of_time_programs();

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CPU_AHEAD_OF_TIME_H_
