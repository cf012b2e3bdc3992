// What an op gives to be called from Python: one row of a table.
#ifndef BRIDGE_PYTHON_PYTHON_OP_H_
#define BRIDGE_PYTHON_PYTHON_OP_H_

#include <Python.h>

#include <cstddef>

#include "operand.h"

namespace bridge::python {

constexpr size_t kMaxOperands = 16;
constexpr size_t kMaxResults = 3;
constexpr size_t kMaxAttributes = 8;

// How a call ended: done, or the position of an operand whose strides the kernels cannot walk
// (nothing has been written then), or with a Python exception set.
constexpr int kDone = -1;
constexpr int kRaised = -2;

// A call, read from Python.
struct PythonCall {
  const Operand* operands;
  size_t operand_count;
  const Operand* results;
  const int32_t* attributes;
  int32_t threads;     // how many the CPU kernels may use
  void* stream;        // of the first operand's device
  PyObject* allocate;  // allocate(bytes, like): device memory for a workspace
  PyObject* like;      // the first operand
};

struct PythonOp {
  const char* name;
  size_t result_count;
  size_t attribute_count;
  int (*run)(const PythonCall& call);  // throws nothing
};

// Ends with a row whose name is nullptr.
extern const PythonOp kPythonOps[];

// Raises what `status` means in Python. Always kRaised, for `return raise_status(...)`.
int raise_status(bridge_status status, const char* message);

}  // namespace bridge::python

#endif  // BRIDGE_PYTHON_PYTHON_OP_H_
