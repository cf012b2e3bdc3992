// A call of a program on tensors from Python.
#ifndef BRIDGE_BINDINGS_PYTHON_PYTHON_CALL_H_
#define BRIDGE_BINDINGS_PYTHON_PYTHON_CALL_H_

#include <Python.h>

#include "bindings/calls/program_call.h"
#include "bindings/torch/function_table.h"

namespace bridge::bindings {

// The outcome of a call: kDone; kRaised, with a Python exception set; or the position of an operand
// with strides that the kernels do not support. Then nothing has been written.
constexpr int kDone = -1;
constexpr int kRaised = -2;

struct PythonCall {
  Arguments arguments;
  int32_t threads;     // most threads of the CPU kernels
  void* stream;        // of the first operand's device
  PyObject* allocate;  // allocate(bytes, like): device memory for a workspace
  void* like;          // the first operand: a PyObject, or a TorchTensor if `table` is set
  const FunctionTable* table =
      nullptr;  // function table of libtorch, which then allocates the workspace
};

// Sets a Python exception. Returns kRaised, for `return raise_status(...)`.
int raise_status(bridge_status status, const char* message);

int run(const PythonCall& call);

// Reads the attributes from a tuple of numbers. Returns false with a Python exception set.
bool read_attributes(PyObject* tuple, double (&attributes)[kAttributes]);

// Reads the bytecode in a bytes object. Returns false with a Python exception set.
bool read_code(PyObject* bytes, Code* code);

// Returns true if this is the name of an op; false with a Python exception set. There is one so
// far.
bool require_op(const char* name);

// Adds the function `run` to the module. Returns false with a Python exception set.
bool add_run(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_PYTHON_CALL_H_
