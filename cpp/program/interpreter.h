// Interface of the interpreters: the validation of a call, which CPU and CUDA share, and the run on
// the CPU. Host code only.
#ifndef BRIDGE_PROGRAM_INTERPRETER_H_
#define BRIDGE_PROGRAM_INTERPRETER_H_

#include <bridge/bridge.h>
#include <stddef.h>

#include "program/program.h"

namespace bridge::interpreter {

// Reads the program of a call and checks the call's arrays against it.
bridge_status validate(const bridge_program& call, View* view, char* message, size_t bytes);

// Checks the arrays of a call against its program, which was read before.
bridge_status check_arrays(const bridge_program& call, const View& view, char* message,
                           size_t bytes);

// A program that was read once, for many calls with the same bytecode in the same memory. Reading
// takes longer than a tiny call.
struct KnownProgram {
  View view;
  uint64_t hash;  // of its bytecode, by program_key.h
};
// Returns false if the bytecode is malformed. Throws std::bad_alloc.
bool know(const int32_t* words, int64_t count, KnownProgram* program);

// Runs a call on the CPU. If `known` is null, the bytecode is read first.
bridge_status run_on_cpu(const bridge_program& call, const KnownProgram* known,
                         const bridge_executor* executor);

// Returns true if the call computes in float64.
bool is_double(const bridge_program& call);

struct Counts {
  int64_t batches;
  int64_t rows;  // of a batch
};
Counts counts_of(const bridge_program& call);

int32_t column_sum_count(const View& view);
inline bool has_column_sums(const View& view) { return column_sum_count(view) > 0; }

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_INTERPRETER_H_
