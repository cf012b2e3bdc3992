// A check of labels before a kernel reads them.
#ifndef BRIDGE_BINDINGS_PYTHON_LABEL_RANGE_H_
#define BRIDGE_BINDINGS_PYTHON_LABEL_RANGE_H_

#include <Python.h>

namespace bridge::bindings {

// Adds are_columns(labels, columns, ignored) to the module. It returns True if every label of a
// tensor is from 0 to columns - 1, or is `ignored` (None: no label is). It also returns False,
// without an exception, if that cannot be seen at once: the labels are no integers, are not
// adjacent in memory, or are not on the CPU.
bool add_label_range(PyObject* module);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_LABEL_RANGE_H_
