// Registry of compiled programs, from the build or from run time. It finds the machine that runs a
// bytecode on arrays of some dtypes in place of the interpreter.
#ifndef BRIDGE_GENERATED_CPU_PROGRAMS_H_
#define BRIDGE_GENERATED_CPU_PROGRAMS_H_

#include <bridge/bridge.h>

#include <vector>

#include "program/interpreter.h"
#include "program/machine.h"

namespace bridge::interpreter {

// Returns the machine for a call on an instruction set, by its index; null if none was added. Costs
// little beside the call, and almost nothing if the set has no compiled programs. The first call
// of a machine of the build compares it with the interpreter; a wrong one is not returned.
// Thread-safe.
// `known` is the program of the call if it was read before, or null.
const MachineTable* generated_machine(const bridge_program& call, int isa,
                                      const KnownProgram* known);

// Adds the machine in a shared library, which stays open, for a bytecode, dtypes (operands, then
// results) and an instruction set that this processor has. The machine also runs programs with
// other values of the `free` constants, given by ascending indices. First the machine and the
// interpreter run on random arrays: if a bit differs, the library is not used and the status is
// BRIDGE_INTERNAL. BRIDGE_INVALID_ARGUMENT: the library has no machine, or the bytecode is
// malformed. bridge_last_error() has the message.
bridge_status add_generated(const int32_t* words, int64_t count, const int32_t* dtypes,
                            int64_t arrays, std::vector<int32_t> free, const char* isa,
                            const char* library);

// Returns true if a machine was added for this bytecode, these dtypes and an instruction set, by
// its index.
bool has_generated(const int32_t* words, int64_t count, const int32_t* dtypes, int64_t arrays,
                   int isa);

// Returns how many calls ran a compiled program since the process began.
int64_t generated_calls();

// Returns how many machines of the build had other bits than the interpreter.
int64_t rejected_programs();

// Removes all compiled programs, for tests. No call may be running.
void forget_generated();

// ---- Functions of the row driver (interpreter.cpp). ----

const MachineTable& interpreting_machine(int isa, bool is_double);
// Runs a validated call. Throws std::bad_alloc.
void run_on(const MachineTable& machine, const View& view, const bridge_program& call,
            const bridge_executor* executor);
// Splits the columns of a call's rows over at most `tasks` tasks, in parts of `cols` columns, a
// power of two of chunks (row_sum_tree.h).
ColumnSplit split_into(int64_t tasks, int64_t cols, const bridge_executor* executor);
// Runs a validated call with at least one row batch by batch, with the columns split as given and
// results streamed as in Rows.
void run_split(const MachineTable& machine, const View& view, const bridge_program& call,
               const ColumnSplit& split, uint32_t streamed);

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CPU_PROGRAMS_H_
