// Ops that are no programs, on tensors from Python: matrix products, convolutions, the gradient of
// embeddings and the choice of columns.
#ifndef BRIDGE_BINDINGS_PYTHON_ARRAY_CALLS_H_
#define BRIDGE_BINDINGS_PYTHON_ARRAY_CALLS_H_

#include <Python.h>

namespace bridge::bindings {

// Adds the functions run_product, run_convolution, run_embedding_gradient, run_selection and
// run_taps. Returns false with a Python exception set.
bool add_array_calls(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_ARRAY_CALLS_H_
