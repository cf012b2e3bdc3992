// Device memory that a call from Python needs while it runs.
#ifndef BRIDGE_BINDINGS_PYTHON_WORKSPACE_H_
#define BRIDGE_BINDINGS_PYTHON_WORKSPACE_H_

#include <Python.h>

#include <cstdint>

#include "bindings/python/dlpack_exchange.h"
#include "bindings/torch/function_table.h"

namespace bridge::bindings {

// A workspace from the stream's own allocator, which reuses the memory only after the kernel.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    Py_XDECREF(object_);
    if (tensor_ != nullptr) table_->drop(tensor_);
  }

  // Makes it with the function table of libtorch, for a tensor `like`; without a table, with the
  // Python function allocate(bytes, like). Returns false with a Python exception set.
  bool allocate(const FunctionTable* table, PyObject* allocate, void* like, int64_t bytes) {
    if (table != nullptr) {
      table_ = table;
      tensor_ = table_->make_empty(static_cast<TorchTensor*>(like), &bytes, 1, BRIDGE_UINT8, &data);
      if (tensor_ == nullptr) PyErr_NoMemory();
      return tensor_ != nullptr;
    }
    object_ = PyObject_CallFunction(allocate, "LO", static_cast<long long>(bytes),
                                    static_cast<PyObject*>(like));
    Operand described;
    if (object_ == nullptr || !borrowed_.read(object_, &described)) return false;
    data = described.data;
    return true;
  }

  void* data = nullptr;

 private:
  PyObject* object_ = nullptr;
  Borrowed borrowed_;
  TorchTensor* tensor_ = nullptr;
  const FunctionTable* table_ = nullptr;
};

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_WORKSPACE_H_
