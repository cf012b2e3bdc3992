// A matrix product on tensors from Python.
#ifndef BRIDGE_BINDINGS_PYTHON_PRODUCT_RUN_H_
#define BRIDGE_BINDINGS_PYTHON_PRODUCT_RUN_H_

#include <Python.h>

namespace bridge::bindings {

// Adds the function `run_product` to the module. Returns false with a Python exception set.
bool add_run_product(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_PRODUCT_RUN_H_
