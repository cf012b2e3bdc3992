// The function table of libtorch. The module of nodes (nodes.cpp), which is compiled against torch,
// passes it to bridge._native. It is faster than torch's Python functions, which parse their
// arguments again and release the GIL for everything they do, and it needs no Python object for a
// tensor used in C++ alone.
#ifndef BRIDGE_BINDINGS_TORCH_FUNCTION_TABLE_H_
#define BRIDGE_BINDINGS_TORCH_FUNCTION_TABLE_H_

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// A tensor of torch, a c10::TensorImpl. "Owned": the receiver gets a reference and must release it.
struct TorchTensor;

struct FunctionTable {
  // Returns the tensor of a Python object, which keeps the ownership; nullptr if it is no tensor.
  TorchTensor* (*of)(PyObject* object);
  // Turn a reference to a Python object into an owned tensor, and back. Return nullptr with a
  // Python exception set if there is no memory.
  TorchTensor* (*take)(PyObject* object);
  PyObject* (*give)(TorchTensor* owned);
  void (*drop)(TorchTensor* owned);
  // Describes a tensor as an operand. Returns false if its values are not in memory, or are negated
  // there.
  bool (*describe)(TorchTensor* tensor, Operand* operand);
  // Returns a row-major tensor on the device of `like`, owned, and its address; nullptr if there is
  // no memory.
  TorchTensor* (*make_empty)(TorchTensor* like, const int64_t* sizes, int32_t ndim, int32_t dtype,
                             void** address);
  // Returns true if a mode, a transform or tracing observes every call. *grad: autograd may record
  // calls.
  bool (*is_observed)(bool* grad);
  bool (*requires_grad)(TorchTensor* tensor);
  // Returns true if a Python class overrides operations on the tensor.
  bool (*is_overridden)(TorchTensor* tensor);

  // Set by bridge._native: runs a kernel (bridge._native.Kernel) on tensors, nullptr for absent
  // ones. Returns the number of results, at most BRIDGE_MAX_PROGRAM_RESULTS: owned tensors, nullptr
  // for unwanted ones. Returns -1 if the kernel has not run: `kernel` is another object, the call
  // is not an ordinary one, or, if `watched` asks for this test, the call has observers other than
  // the caller.
  int (*run)(PyObject* kernel, TorchTensor* const* operands, size_t count, bool watched,
             TorchTensor** results);
};

// The name of the capsule that holds the table.
constexpr const char* kFunctionTableName = "bridge.torch.function_table";

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_TORCH_FUNCTION_TABLE_H_
