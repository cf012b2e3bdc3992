// Several tensors from Python, as operands.
#ifndef BRIDGE_BINDINGS_PYTHON_TENSORS_H_
#define BRIDGE_BINDINGS_PYTHON_TENSORS_H_

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <new>

#include "bindings/calls/operand.h"
#include "bindings/python/dlpack_exchange.h"
#include "bindings/python/stable_abi.h"
#include "bindings/torch/function_table.h"

namespace bridge::bindings {

// Only as many entries as there are tensors are ever touched: clearing all would take a good part
// of a tiny call's time.
template <size_t kCapacity>
class Tensors {
 public:
  Tensors() = default;
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;
  ~Tensors() {
    while (held_ > 0) borrowed(--held_)->~Borrowed();
  }

  // Reads `count` objects; None is an absent operand. Returns false with a Python exception set.
  bool read(PyObject* const* objects, size_t count) {
    if (count > kCapacity) {
      PyErr_Format(PyExc_ValueError, "%zu tensors, expected at most %zu", count, kCapacity);
      return false;
    }
    while (held_ < count) {
      const size_t i = held_++;
      new (borrowed(i)) Borrowed;
      Operand* operand = new (&operands_[i * sizeof(Operand)]) Operand;
      if (!borrowed(i)->read(objects[i], operand)) return false;
    }
    return true;
  }

  // Reads `count` torch tensors; nullptr is an absent operand. Sets no exception.
  bool read(const FunctionTable& table, void* const* tensors, size_t count) {
    while (held_ < count) {
      const size_t i = held_++;
      new (borrowed(i)) Borrowed;
      Operand* operand = new (&operands_[i * sizeof(Operand)]) Operand;
      if (tensors[i] != nullptr &&
          !table.describe(static_cast<TorchTensor*>(tensors[i]), operand)) {
        return false;
      }
    }
    return true;
  }

  bool read(PyObject* tuple) {
    if (!PyTuple_Check(tuple)) {
      raise_unexpected("a tuple of tensors", tuple);
      return false;
    }
    PyObject* objects[kCapacity];
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(tuple));
    for (size_t i = 0; i < std::min(count, kCapacity); ++i) {
      objects[i] = PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i));
    }
    return read(objects, count);
  }

  size_t size() const { return held_; }
  const Operand* operands() const { return reinterpret_cast<const Operand*>(operands_); }
  void* stream(size_t i) const { return i < held_ ? borrowed(i)->stream : nullptr; }

 private:
  Borrowed* borrowed(size_t i) {
    return reinterpret_cast<Borrowed*>(&borrowed_[i * sizeof(Borrowed)]);
  }
  const Borrowed* borrowed(size_t i) const {
    return reinterpret_cast<const Borrowed*>(&borrowed_[i * sizeof(Borrowed)]);
  }

  alignas(Borrowed) unsigned char borrowed_[kCapacity * sizeof(Borrowed)];
  alignas(Operand) unsigned char operands_[kCapacity * sizeof(Operand)];
  size_t held_ = 0;
};

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

#endif  // BRIDGE_BINDINGS_PYTHON_TENSORS_H_
