// The gradient of an embedding on tensors from Python.
#ifndef BRIDGE_BINDINGS_PYTHON_EMBEDDING_RUN_H_
#define BRIDGE_BINDINGS_PYTHON_EMBEDDING_RUN_H_

#include <Python.h>

namespace bridge::bindings {

// Adds the function `run_embedding_gradient` to the module. Returns false with a Python exception
// set.
bool add_run_embedding(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_EMBEDDING_RUN_H_
