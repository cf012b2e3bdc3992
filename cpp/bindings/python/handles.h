// Tensors in the calls of bridge._native.Kernel: torch's own if the function table of libtorch is
// set (bindings/torch/function_table.h), otherwise Python objects, read through DLPack.
#ifndef BRIDGE_BINDINGS_PYTHON_HANDLES_H_
#define BRIDGE_BINDINGS_PYTHON_HANDLES_H_

#include <Python.h>

#include <cstddef>

#include "bindings/calls/program_call.h"
#include "bindings/python/frontend.h"
#include "bindings/python/tensors.h"

namespace bridge::bindings {

// A TorchTensor or a PyObject.
using Handle = void*;

// The operands of a call, which the caller owns.
class Given {
 public:
  explicit Given(const Frontend& frontend) : frontend_(frontend), table_(libtorch_functions()) {}

  // Takes tensors; None and nullptr are absent operands. Returns false, with or without a Python
  // exception, if the kernels cannot read one of them.
  bool read(PyObject* const* objects, size_t count);
  bool read(TorchTensor* const* tensors, size_t count);

  // Returns true if the memory of a present operand holds its values, not their negations.
  bool holds_its_values(size_t i) const;

  // Finds torch's current stream on the operands' device. Returns false with a Python exception
  // set.
  bool find_stream(void** stream) const;

  const Frontend& frontend() const { return frontend_; }
  const FunctionTable* table() const { return table_; }
  Handle handle(size_t i) const { return handles_[i]; }
  size_t size() const { return tensors_.size(); }
  const Operand* operands() const { return tensors_.operands(); }

 private:
  const Frontend& frontend_;
  const FunctionTable* const table_;
  Handle handles_[kMaxOperands];
  Tensors<kMaxOperands> tensors_;
};

// The results of a call. Releases all that have not been handed on.
class Fresh {
 public:
  explicit Fresh(const Given& given) : given_(given) {}
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;
  ~Fresh();

  // Adds a compact tensor on the device of `like`, an operand or an earlier result: of the same
  // dtype and shape, or with the dtype and shape of *described. Sets described->data. Returns
  // false, with or without a Python exception, if there is no memory.
  bool add(Handle like, bool is_alike, PyObject* dtype, Operand* described);
  void add_unwanted() { handles_[count_++] = nullptr; }

  Handle handle(size_t i) const { return handles_[i]; }

  // Returns the results as a tuple, None for unwanted ones; nullptr with a Python exception set.
  PyObject* as_tuple();
  // Hands the results to a node, nullptr for unwanted ones. Returns how many there are.
  int hand_on(TorchTensor** tensors);

 private:
  Handle make(Handle like, bool is_alike, PyObject* dtype, Operand* described) const;

  const Given& given_;
  size_t count_ = 0;
  Handle handles_[kMaxResults];
};

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_HANDLES_H_
