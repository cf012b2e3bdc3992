// What a tensor library tells the native module once, so that a tiny call need not go through
// Python to find out whether it is an ordinary one.
#ifndef BRIDGE_BORDER_PYTHON_FRONTEND_H_
#define BRIDGE_BORDER_PYTHON_FRONTEND_H_

#include <Python.h>

#include <cstddef>

#include "border/torch/lent.h"

namespace bridge::border {

struct Frontend {
  PyObject* types;            // tuple of the types of ordinary tensors
  PyObject* states;           // tuple of functions: any that answers with truth, and it is not
  PyObject* forward_levels;   // dict whose "_current_level" is below 0 outside forward mode
  PyObject* profiler;         // dict whose "_is_profiler_enabled" is True while a profiler runs
  PyObject* is_grad_enabled;  // function: whether requires_grad means anything
  PyObject* requires_grad;    // descriptor of tensors
  PyObject* is_negative;      // function (tensor): whether its memory holds the opposite numbers
  PyObject* empty_like;       // function (tensor): memory for a result, laid out alike
  PyObject* new_empty;        // function (tensor, shape, dtype=): memory for a result on its device
  PyObject* dtype_keyword;    // ("dtype",)
  PyObject* data_ptr;         // function (tensor): the address of its memory
  PyObject* get_num_threads;  // function
  PyObject* current_device;   // function: index of the current CUDA device; None without CUDA
  PyObject* allocate;         // function (bytes, like): memory for a workspace
};

// Takes the fields from a tuple, which must outlive *frontend. Returns false with a Python
// exception set.
bool read_frontend(PyObject* tuple, Frontend* frontend);

// What calls torch without Python; nullptr until it is there.
const Lent* lent_by_torch();

// Takes it from its capsule, and gives it `run`. False with a Python exception set for any other
// object.
bool use_lent(PyObject* capsule, decltype(Lent::run) run);

// Whether a profiler runs.
bool is_profiled(const Frontend& frontend);

enum class Watch { error, nothing, gradient, other };

// Who watches the operands: nobody, autograd alone, or a mode, tracing, a transform, a profiler,
// a subclass. An error comes with a Python exception set.
Watch who_watches(const Frontend& frontend, PyObject* const* operands, size_t count);
Watch who_watches(const Frontend& frontend, const Lent& lent, TorchTensor* const* operands,
                  size_t count);

// Whether the memory of a tensor holds what the tensor does, which DLPack does not tell. False too,
// with a Python exception set, where that cannot be found out.
bool holds_its_values(const Frontend& frontend, PyObject* tensor);

// An index that a Python function answers with; -1 with a Python exception set.
long ask_number(PyObject* function);

// Where the memory of a tensor begins. False with a Python exception set.
bool find_memory(const Frontend& frontend, PyObject* tensor, void** address);

// Called once, before the others. Returns false with a Python exception set.
bool prepare_frontend();

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_FRONTEND_H_
