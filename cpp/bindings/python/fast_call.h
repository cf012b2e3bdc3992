// The calls of bridge._native.Kernel: the fast path for ordinary tensors.
#ifndef BRIDGE_BINDINGS_PYTHON_FAST_CALL_H_
#define BRIDGE_BINDINGS_PYTHON_FAST_CALL_H_

#include <Python.h>

#include <cstddef>
#include <deque>

#include "bindings/calls/program_call.h"
#include "bindings/python/frontend.h"
#include "program/interpreter.h"

namespace bridge::bindings {

constexpr int kUnwanted = -1;
constexpr int kLikeNone = -2;

// The shape of a result and its allocation. A result that is like no operand takes dimensions of
// the first.
struct Made {
  int like;  // index of the operand, or of the earlier result counted after the operands, that it
             // is allocated like; or one of the above
  int leading;     // leading dimensions taken from the first operand, at most all but its last
  int columns;     // size of the last dimension, in halves of the first operand's; 0: there is none
  int dtype_code;  // as in Operand
  PyObject* dtype;  // the same for new_empty
};

// A combination of operand dtypes supported by the kernel, and the call for it.
struct Variant {
  size_t operand_count;
  int32_t dtypes[kMaxOperands];  // as in Operand, or kUnwanted for an absent operand
  double attributes[kAttributes];
  size_t result_count;
  Made results[kMaxResults];
  PyObject* made;   // the tuple that `results` was read from
  PyObject* plan;   // its method record(*operands) lets autograd record a call
  PyObject* bytes;  // object that holds `code`
  Code code;
  interpreter::KnownProgram program;  // of `code`, if `code.known` points here
  mutable uint64_t met = 0;           // one bit for each device on which plan.met was called
};

struct Kernel {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* frontend_tuple;
  Frontend frontend;
  std::deque<Variant>* variants;  // a deque: adding leaves the others in place (see `compute`)
};

// kernel(*operands): returns the results as a tuple, None for unwanted ones, recorded by autograd
// if an operand requires a gradient. Returns None if the call is not an ordinary one or cannot be
// made: the caller then takes the general path. Exceptions up to there are dropped, because nothing
// visible has been written. Exceptions of `record` are passed on.
PyObject* fast_call(PyObject* kernel, PyObject* const* operands, size_t flags, PyObject* keywords);

// Called once, before the others. Returns false with a Python exception set.
bool prepare_fast_call();

// kernel.recorded(*operands): returns the plan of an ordinary call that autograd is to record; None
// for any other call.
PyObject* fast_recorded(PyObject* kernel, PyObject* const* operands, Py_ssize_t count);

// kernel.compute(*operands): the same as kernel(*operands), without the test for observers: there
// must be none.
PyObject* fast_compute(PyObject* kernel, PyObject* const* operands, Py_ssize_t count);

// kernel.write(out, *operands): writes the wanted results into the tensors of the tuple `out` and
// returns True. Returns False, and writes nothing, if the call is not an ordinary one or is
// observed.
PyObject* fast_write(PyObject* kernel, PyObject* const* objects, Py_ssize_t count);

// Implements FunctionTable::run (bindings/torch/function_table.h).
int fast_run(PyObject* kernel, TorchTensor* const* operands, size_t count, bool watched,
             TorchTensor** results);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_FAST_CALL_H_
