// Tensors for large results on the CPU, in memory of earlier results.
#ifndef BRIDGE_BINDINGS_PYTHON_KEPT_TENSOR_H_
#define BRIDGE_BINDINGS_PYTHON_KEPT_TENSOR_H_

#include <Python.h>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// Returns true if the memory of a compact tensor is worth reusing: it is large, and not on a GPU.
bool is_kept(const Operand& described);

// Returns a compact tensor of a type, with the dtype and shape of *described, and sets
// described->data. Returns nullptr without an exception if its memory is not to be reused: the
// tensor is small or on a GPU, its library takes no memory, or there is none.
PyObject* make_kept(PyTypeObject* type, Operand* described);

// Adds kept_empty(like, dtype_code, shape), which returns make_kept() or None, to the module, and
// keep_memory(bytes) and kept_memory() of cpu/kept_memory.h.
bool add_kept_memory(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_KEPT_TENSOR_H_
