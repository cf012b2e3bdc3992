// What the module of nodes (nodes.cpp), which calls torch as C++, lends to bridge._native: torch's
// Python functions read their arguments anew, and give up the GIL for whatever they do.
#ifndef BRIDGE_BORDER_TORCH_LENT_H_
#define BRIDGE_BORDER_TORCH_LENT_H_

#include <Python.h>

#include <cstdint>

namespace bridge::border {

struct Lent {
  // A row-major tensor on the device of another, of its dtype unless one is given; *address is
  // where it begins. nullptr with a Python exception set.
  PyObject* (*make_empty)(PyObject* like, const int64_t* sizes, int32_t ndim, PyObject* dtype,
                          void** address);
  // Whether the memory of a tensor holds the opposite numbers, or is none of torch's.
  bool (*is_negative)(PyObject* tensor);
};

// Of the capsule in which it comes.
constexpr const char* kLentName = "bridge.torch.lent";

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_TORCH_LENT_H_
