// Ops that are no programs, on tensors from Python: matrix products and the gradient of embeddings.
#ifndef BRIDGE_BINDINGS_PYTHON_ARRAY_CALLS_H_
#define BRIDGE_BINDINGS_PYTHON_ARRAY_CALLS_H_

#include <Python.h>

namespace bridge::bindings {

// Adds the functions run_product and run_embedding_gradient to the module. Returns false with a
// Python exception set.
bool add_array_calls(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_ARRAY_CALLS_H_
