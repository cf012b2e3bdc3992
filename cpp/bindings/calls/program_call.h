// Calls of a program from tensors, which Python and XLA both make.
#ifndef BRIDGE_BINDINGS_CALLS_PROGRAM_CALL_H_
#define BRIDGE_BINDINGS_CALLS_PROGRAM_CALL_H_

#include <bridge/bridge.h>

#include <cstddef>
#include <cstdint>

#include "bindings/calls/operand.h"

namespace bridge::interpreter {
struct KnownProgram;
}

namespace bridge::bindings {

constexpr const char* kProgramName = "program";  // in Python and in messages
constexpr size_t kMaxOperands = BRIDGE_MAX_PROGRAM_OPERANDS;
constexpr size_t kMaxResults = BRIDGE_MAX_PROGRAM_RESULTS;
constexpr size_t kAttributes = 2;  // batch_ndim, index_cols

// The bytecode of a program (program/program.h). `known` is the checked program, if a cache has it.
struct Code {
  const int32_t* words = nullptr;
  int64_t count = 0;
  const interpreter::KnownProgram* known = nullptr;
};

// The arguments of a call, by position. An absent argument has an entry that is not `present`.
struct Arguments {
  const Operand* operands;
  size_t operand_count;
  const Operand* results;
  size_t result_count;
  const double* attributes;
  size_t attribute_count;
  Code code;
  bool results_are_fresh = false;  // nothing else can lie in their memory
};

// A call in the form of the kernel library. It is not cleared: clearing unused entries would cost a
// tiny call more than everything else.
struct BoundProgram : bridge_program {
  bridge_program_array operand_arrays[kMaxOperands];
  bridge_program_array result_arrays[kMaxResults];
  const interpreter::KnownProgram* known;
};

// Checks the arguments and describes them in *call. Returns false and sets *error if they are
// invalid.
bool bind(const Arguments& arguments, BoundProgram* call, CallError* error);

// Returns the number of elements of the largest array.
int64_t elements_of(const BoundProgram& call);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_PROGRAM_CALL_H_
