// Programs that were compiled, by the build or while the process runs: which machine runs the
// program of some words on arrays of some dtypes, instead of the interpreter.
#ifndef BRIDGE_INTERPRETER_GENERATED_PROGRAMS_H_
#define BRIDGE_INTERPRETER_GENERATED_PROGRAMS_H_

#include <bridge/bridge.h>

#include <vector>

#include "interpreter/interpreter.h"
#include "interpreter/machine.h"

namespace bridge::interpreter {

// The machine for a call on an instruction set, by its index; null where none was added. Cheap
// while there are none for it, and in any case beside the call; any thread may ask. `known` is the
// program of the call, where that was read before, or null.
const MachineTable* generated_machine(const bridge_program& call, int isa,
                                      const KnownProgram* known);

// Adds the machine that is in a library, which stays open, for the program of these words on arrays
// of these dtypes (operands, then results) and for an instruction set that this processor has. It
// runs programs with other constants too, where their numbers, rising, are among the `free` ones.
// Random arrays are computed by it and by the interpreter first: a bit that differs is
// BRIDGE_INTERNAL, and the library is not used. Without a machine in it, or with words that are no
// program: BRIDGE_INVALID_ARGUMENT. The message is bridge_last_error()'s.
bridge_status add_generated(const int32_t* words, int64_t count, const int32_t* dtypes,
                            int64_t arrays, std::vector<int32_t> free, const char* isa,
                            const char* library);

// Whether there is one for these words and dtypes, and for an instruction set by its index.
bool has_generated(const int32_t* words, int64_t count, const int32_t* dtypes, int64_t arrays,
                   int isa);

// How many calls took one of them, since the process began.
int64_t generated_calls();

// Forgets all of them, for tests; no call may be running.
void forget_generated();

// ---- What the driver offers for it (interpreter.cpp). ----

const MachineTable& interpreting_machine(int isa, bool is_double);
// Runs a call that was validated. Throws std::bad_alloc.
void run_on(const MachineTable& machine, const View& view, const bridge_program& call,
            const bridge_executor* executor);
// The columns of a call's rows dealt to at most so many tasks, in parts of `cols`, a power of two
// of chunks of row_sum_tree.h.
ColumnSplit split_into(int64_t tasks, int64_t cols, const bridge_executor* executor);
// As run_on, batch by batch, with the columns of its rows, at least one, dealt so, and with results
// streamed as Rows has it.
void run_split(const MachineTable& machine, const View& view, const bridge_program& call,
               const ColumnSplit& split, uint32_t streamed);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_GENERATED_PROGRAMS_H_
