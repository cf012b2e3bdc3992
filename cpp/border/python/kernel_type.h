// The Python type bridge._native.Kernel: an op with fixed attributes, called on tensors.
#ifndef BRIDGE_BORDER_PYTHON_KERNEL_TYPE_H_
#define BRIDGE_BORDER_PYTHON_KERNEL_TYPE_H_

#include <Python.h>

namespace bridge::border {

// Returns false with a Python exception set.
bool add_kernel_type(PyObject* module);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_KERNEL_TYPE_H_
