// The Python type bridge._native.Kernel: a program with fixed attributes, called on tensors.
#ifndef BRIDGE_BINDINGS_PYTHON_KERNEL_TYPE_H_
#define BRIDGE_BINDINGS_PYTHON_KERNEL_TYPE_H_

#include <Python.h>

namespace bridge::bindings {

// Returns true for an object of this type, which has no subclasses.
bool is_kernel(PyObject* object);

// Returns false with a Python exception set.
bool add_kernel_type(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_KERNEL_TYPE_H_
