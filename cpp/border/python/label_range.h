// Labels that are looked at before a kernel reads them.
#ifndef BRIDGE_BORDER_PYTHON_LABEL_RANGE_H_
#define BRIDGE_BORDER_PYTHON_LABEL_RANGE_H_

#include <Python.h>

namespace bridge::border {

// Adds are_columns(labels, columns, ignored) to the module: whether every label of a tensor is a
// number from 0 to columns - 1, or is `ignored` (None: none is). False without an exception also
// where that is not seen at once: the labels are no integers, lie apart, or are not on the CPU.
bool add_label_range(PyObject* module);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_LABEL_RANGE_H_
