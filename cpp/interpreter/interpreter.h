// What the CPU and the CUDA interpreter share: the checks of a call. Host code only.
#ifndef BRIDGE_INTERPRETER_INTERPRETER_H_
#define BRIDGE_INTERPRETER_INTERPRETER_H_

#include <bridge/bridge.h>
#include <stddef.h>

#include "interpreter/program.h"

namespace bridge::interpreter {

// Reads the program of a call and holds its arrays against it.
bridge_status validate(const bridge_program& call, View* view, char* message, size_t bytes);

// Whether the arithmetic is that of float64.
bool is_double(const bridge_program& call);

struct Counts {
  int64_t batches;
  int64_t rows;  // of a batch
};
Counts counts_of(const bridge_program& call);

bool has_column_sums(const View& view);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_INTERPRETER_H_
