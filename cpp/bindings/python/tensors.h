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

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_TENSORS_H_
