// A call of an op on tensors that Python lent.
#ifndef BRIDGE_BORDER_PYTHON_PYTHON_CALL_H_
#define BRIDGE_BORDER_PYTHON_PYTHON_CALL_H_

#include <Python.h>

#include "border/binding/op.h"
#include "border/torch/lent.h"

namespace bridge::border {

// How a call ended: done, or the position of an operand whose strides the kernels cannot walk
// (nothing has been written then), or with a Python exception set.
constexpr int kDone = -1;
constexpr int kRaised = -2;

struct PythonCall {
  const Op& op;
  Arguments arguments;
  int32_t threads;             // how many the CPU kernels may use
  void* stream;                // of the first operand's device
  PyObject* allocate;          // allocate(bytes, like): device memory for a workspace
  void* like;                  // the first operand: an object of Python's, or a TorchTensor where
  const Lent* lent = nullptr;  // torch is asked for memory
};

int run(const PythonCall& call);

// Reads the attributes of an op from a tuple of numbers. False with a Python exception set.
bool read_attributes(const Op& op, PyObject* tuple, double* attributes);

// The words in a bytes object; none without one. False with a Python exception set.
bool read_code(const Op& op, PyObject* bytes, Code* code);

// nullptr with a Python exception set.
const Op* require_op(const char* name);

// Adds the function `run` to the module. False with a Python exception set.
bool add_run(PyObject* module);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_PYTHON_CALL_H_
