// What the module of nodes (nodes.cpp), which calls torch as C++, lends to bridge._native, and what
// it has for that: torch's Python functions read their arguments anew and give up the GIL for
// whatever they do, and a tensor that only C++ looks at needs no object of Python's.
#ifndef BRIDGE_BORDER_TORCH_LENT_H_
#define BRIDGE_BORDER_TORCH_LENT_H_

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "border/binding/operand.h"

namespace bridge::border {

// A tensor of torch, a c10::TensorImpl. "Owned": with a reference that is the receiver's.
struct TorchTensor;

struct Lent {
  // That of an object of Python's, which owns it; nullptr where it is none.
  TorchTensor* (*of)(PyObject* object);
  // That of an object which is given up, owned, and the other way round. nullptr with a Python
  // exception set where there is no memory.
  TorchTensor* (*take)(PyObject* object);
  PyObject* (*give)(TorchTensor* owned);
  void (*drop)(TorchTensor* owned);
  // Describes where its values lie in memory; false where they do not, or as opposite numbers.
  bool (*describe)(TorchTensor* tensor, Operand* operand);
  // A row-major one on the device of another, owned, *address being where it begins; nullptr where
  // there is no memory.
  TorchTensor* (*make_empty)(TorchTensor* like, const int64_t* sizes, int32_t ndim, int32_t dtype,
                             void** address);
  // Whether a mode, a transform or tracing sees every call; *grad: whether autograd may record one.
  bool (*is_observed)(bool* grad);
  bool (*requires_grad)(TorchTensor* tensor);
  // Whether a class in Python is asked what is to happen with it.
  bool (*is_overridden)(TorchTensor* tensor);

  // Set by bridge._native: runs a kernel (bridge._native.Kernel) on tensors, nullptr for the absent
  // ones, and returns how many results it has, at most BRIDGE_MAX_PROGRAM_RESULTS, owned, nullptr
  // for the unwanted ones. -1 where it has not run: whatever else `kernel` is, calls that are not
  // ordinary, and, where `watched` says that this is to be asked, those that anyone but the caller
  // watches.
  int (*run)(PyObject* kernel, TorchTensor* const* operands, size_t count, bool watched,
             TorchTensor** results);
};

// Of the capsule in which it comes.
constexpr const char* kLentName = "bridge.torch.lent";

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_TORCH_LENT_H_
