// The calls of bridge._native.Kernel: the short path of ordinary tensors.
#ifndef BRIDGE_BORDER_PYTHON_FAST_CALL_H_
#define BRIDGE_BORDER_PYTHON_FAST_CALL_H_

#include <Python.h>

#include <cstddef>
#include <deque>

#include "border/binding/op.h"
#include "border/python/frontend.h"
#include "interpreter/interpreter.h"

namespace bridge::border {

constexpr int kUnwanted = -1;
constexpr int kLikeNone = -2;

// How a result is made. One that is like no operand is laid out by the first.
struct Made {
  int like;         // the operand, or the earlier result counted after them, that it is allocated
                    // like; or one of the above
  int leading;      // how many dimensions are those of the first operand: at most all but its last
  int columns;      // the last dimension, in halves of the first operand's; 0: there is none
  int dtype_code;   // as in Operand
  PyObject* dtype;  // as new_empty takes it
};

// A combination of operand dtypes that the kernel takes, and what it means.
struct Variant {
  size_t operand_count;
  int32_t dtypes[kMaxOperands];  // as in Operand, or kUnwanted for an absent operand
  double attributes[kMaxAttributes];
  size_t result_count;
  Made results[kMaxResults];
  PyObject* made;   // the tuple that `results` was read from
  PyObject* plan;   // its method record(*operands) has autograd record a call
  PyObject* bytes;  // that hold `code`, or null
  Code code;
  interpreter::KnownProgram program;  // of `code`, where that knows it
  mutable uint64_t met = 0;           // a bit for each device on which `plan` was told of a call
};

struct Kernel {
  PyObject_HEAD vectorcallfunc vectorcall;
  const Op* op;
  PyObject* frontend_tuple;
  Frontend frontend;
  std::deque<Variant>* variants;  // what is added leaves the others where they are: see `compute`
};

// kernel(*operands): the results as a tuple, None for the unwanted ones, recorded by autograd where
// an operand requires a gradient. None where the call is not an ordinary one or cannot be made,
// which the caller's general path then deals with; exceptions before that are dropped for this
// reason: nothing has been written that anyone saw. Exceptions of `record` are passed on.
PyObject* fast_call(PyObject* kernel, PyObject* const* operands, size_t flags, PyObject* keywords);

// Called once, before the others. Returns false with a Python exception set.
bool prepare_fast_call();

// kernel.recorded(*operands): what an ordinary call tells autograd that is to record it; None of
// any other call.
PyObject* fast_recorded(PyObject* kernel, PyObject* const* operands, Py_ssize_t count);

// kernel.compute(*operands): the same where nobody watches, which is not asked.
PyObject* fast_compute(PyObject* kernel, PyObject* const* operands, Py_ssize_t count);

// kernel.write(out, *operands): whether the only result has been written into `out`. False for
// whatever is not an ordinary call that nobody watches; nothing is written then.
PyObject* fast_write(PyObject* kernel, PyObject* const* objects, Py_ssize_t count);

// Lent::run (border/torch/lent.h).
int fast_run(PyObject* kernel, TorchTensor* const* operands, size_t count, bool watched,
             TorchTensor** results);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_FAST_CALL_H_
