// Tensors as the calls of bridge._native.Kernel have them: torch's own where torch lends what is
// asked of them (border/torch/lent.h), objects of Python's, read through DLPack, before.
#ifndef BRIDGE_BORDER_PYTHON_HANDLES_H_
#define BRIDGE_BORDER_PYTHON_HANDLES_H_

#include <Python.h>

#include <cstddef>

#include "border/binding/op.h"
#include "border/python/frontend.h"
#include "border/python/tensors.h"

namespace bridge::border {

// A TorchTensor or a PyObject.
using Handle = void*;

// Operands of a call, which whoever calls holds.
class Given {
 public:
  explicit Given(const Frontend& frontend) : frontend_(frontend), lent_(lent_by_torch()) {}

  // Takes tensors, None or nullptr for what is absent. Returns false, with a Python exception or
  // without, where one is none that kernels read.
  bool read(PyObject* const* objects, size_t count);
  bool read(TorchTensor* const* tensors, size_t count);

  // Whether the kernels find the values of an operand that is there where they look for them.
  bool holds_its_values(size_t i) const;

  // The stream on which torch works on their device. False with a Python exception set.
  bool find_stream(void** stream) const;

  const Frontend& frontend() const { return frontend_; }
  const Lent* lent() const { return lent_; }
  Handle handle(size_t i) const { return handles_[i]; }
  size_t size() const { return tensors_.size(); }
  const Operand* operands() const { return tensors_.operands(); }

 private:
  const Frontend& frontend_;
  const Lent* const lent_;
  Handle handles_[kMaxOperands];
  Tensors<kMaxOperands> tensors_;
};

// Results of a call; those that have not been handed on are dropped with it.
class Fresh {
 public:
  explicit Fresh(const Given& given) : given_(given) {}
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;
  ~Fresh();

  // Adds a compact tensor like another, an operand or an earlier result, on whose device it is; or
  // with dtype and shape of *described. `data` of that is then set. Returns false, with a Python
  // exception or without, where there is no memory.
  bool add(Handle like, bool is_alike, PyObject* dtype, Operand* described);
  void add_unwanted() { handles_[count_++] = nullptr; }

  Handle handle(size_t i) const { return handles_[i]; }

  // A tuple of them, None for the unwanted. nullptr with a Python exception set.
  PyObject* as_tuple();
  // For nodes; nullptr for the unwanted. Returns how many there are.
  int hand_on(TorchTensor** tensors);

 private:
  Handle make(Handle like, bool is_alike, PyObject* dtype, Operand* described) const;

  const Given& given_;
  size_t count_ = 0;
  Handle handles_[kMaxResults];
};

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_HANDLES_H_
