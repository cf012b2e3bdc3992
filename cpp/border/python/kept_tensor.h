// Tensors for large results on the CPU, in memory that earlier ones have left.
#ifndef BRIDGE_BORDER_PYTHON_KEPT_TENSOR_H_
#define BRIDGE_BORDER_PYTHON_KEPT_TENSOR_H_

#include <Python.h>

#include "border/binding/operand.h"

namespace bridge::border {

// Whether the memory of a compact tensor is worth keeping: it is large, and not on a GPU.
bool is_kept(const Operand& described);

// A compact tensor of a type, with the dtype and shape of *described, whose `data` is then set.
// nullptr without an exception where its memory is not to be kept: the tensor is small or on a GPU,
// its library takes none, or there is no memory.
PyObject* make_kept(PyTypeObject* type, Operand* described);

// Adds to the module kept_empty(like, dtype_code, shape): make_kept(), or None; and
// keep_memory(bytes) and kept_memory() of cpu/kept_memory.h.
bool add_kept_memory(PyObject* module);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_KEPT_TENSOR_H_
