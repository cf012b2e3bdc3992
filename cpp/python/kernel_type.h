// The Python type bridge._native.Kernel: an op with fixed attributes, called on tensors.
#ifndef BRIDGE_PYTHON_KERNEL_TYPE_H_
#define BRIDGE_PYTHON_KERNEL_TYPE_H_

#include <Python.h>

namespace bridge::python {

// Returns false with a Python exception set.
bool add_kernel_type(PyObject* module);

}  // namespace bridge::python

#endif  // BRIDGE_PYTHON_KERNEL_TYPE_H_
