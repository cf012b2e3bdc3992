// Matrix products of ordinary tensors on the CPU, without Python between the call and the kernel.
#ifndef BRIDGE_BINDINGS_PYTHON_QUICK_PRODUCT_H_
#define BRIDGE_BINDINGS_PYTHON_QUICK_PRODUCT_H_

#include <Python.h>

namespace bridge::bindings {

// Adds the function quick_product. Returns false with a Python exception set.
bool add_quick_product(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_QUICK_PRODUCT_H_
