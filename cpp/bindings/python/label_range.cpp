#include "bindings/python/label_range.h"

#include <cstdint>

#include "bindings/python/tensors.h"

namespace bridge::bindings {
namespace {

// Returns the number of labels; -1 if they are not adjacent in memory.
int64_t count_of(const Operand& labels) {
  int64_t count = 1;
  for (int32_t d = labels.ndim - 1; d >= 0; --d) {
    if (labels.shape[d] != 1 && labels.strides != nullptr && labels.strides[d] != count) return -1;
    count *= labels.shape[d];
  }
  return count;
}

template <class Integer>
bool are_columns(const void* data, int64_t count, int64_t columns, int64_t ignored) {
  const auto* labels = static_cast<const Integer*>(data);
  bool all = true;
  for (int64_t i = 0; i < count; ++i) {
    // The kernels read labels as int64, too.
    const auto label = static_cast<int64_t>(labels[i]);
    all &= (label >= 0 && label < columns) || label == ignored;
  }
  return all;
}

bool are_columns(const Operand& labels, int64_t columns, int64_t ignored) {
  const int64_t count = labels.device == Device::cpu ? count_of(labels) : -1;
  if (count < 0) return false;
  const void* data = labels.data;
  switch (labels.dtype) {
    case BRIDGE_INT64:
      return are_columns<int64_t>(data, count, columns, ignored);
    case BRIDGE_INT32:
      return are_columns<int32_t>(data, count, columns, ignored);
    case BRIDGE_INT16:
      return are_columns<int16_t>(data, count, columns, ignored);
    case BRIDGE_INT8:
      return are_columns<int8_t>(data, count, columns, ignored);
    case BRIDGE_UINT8:
      return are_columns<uint8_t>(data, count, columns, ignored);
    default:
      return false;
  }
}

PyObject* are_columns_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "expected are_columns(labels, columns, ignored)");
    return nullptr;
  }
  Tensors<1> labels;
  bool all = false;
  if (labels.read(arguments, 1) && labels.operands()[0].present) {
    const int64_t columns = PyLong_AsLongLong(arguments[1]);
    // 0 stands for no ignored label, because it is a column anyway.
    const int64_t ignored = arguments[2] == Py_None ? 0 : PyLong_AsLongLong(arguments[2]);
    all = PyErr_Occurred() == nullptr && columns > 0 &&
          are_columns(labels.operands()[0], columns, ignored);
  }
  PyErr_Clear();
  return PyBool_FromLong(all);
}

PyMethodDef kFunctions[] = {
    {"are_columns",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(are_columns_function)),
     METH_FASTCALL, "are_columns(labels, columns, ignored) -> bool"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_label_range(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
