// Facts about a tensor library, passed to the native module once: a tiny call can then find out
// without Python if it is an ordinary one.
#ifndef BRIDGE_BINDINGS_PYTHON_FRONTEND_H_
#define BRIDGE_BINDINGS_PYTHON_FRONTEND_H_

#include <Python.h>

#include <cstddef>

#include "bindings/torch/function_table.h"

namespace bridge::bindings {

struct Frontend {
  PyObject* types;            // tuple of the types of ordinary tensors
  PyObject* states;           // tuple of functions: if any returns true, a call is not ordinary
  PyObject* forward_levels;   // dict whose "_current_level" is below 0 outside forward mode
  PyObject* profiler;         // dict whose "_is_profiler_enabled" is True while a profiler runs
  PyObject* is_grad_enabled;  // function: true if requires_grad has an effect
  PyObject* requires_grad;    // descriptor of tensors
  PyObject* is_negative;      // function (tensor): true if its memory holds the negated values
  PyObject* empty_like;       // function (tensor): memory for a result of the same layout
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

// Returns the function table of libtorch; nullptr until use_function_table() has set it.
const FunctionTable* libtorch_functions();

// Takes the function table from its capsule and sets the table's `run`. Returns false with a Python
// exception set for any other object.
bool use_function_table(PyObject* capsule, decltype(FunctionTable::run) run);

// Returns true if a profiler runs.
bool is_profiled(const Frontend& frontend);

enum class Watch { error, nothing, gradient, other };

// Returns the observer of a call. gradient: autograd alone; other: a mode, tracing, a transform, a
// profiler or a tensor subclass; error: a Python exception is set.
Watch who_watches(const Frontend& frontend, PyObject* const* operands, size_t count);
Watch who_watches(const Frontend& frontend, const FunctionTable& table,
                  TorchTensor* const* operands, size_t count);

// Returns true if the memory of a tensor holds its values, not their negations; DLPack does not
// tell. Returns false, with a Python exception set, if that cannot be found out.
bool holds_its_values(const Frontend& frontend, PyObject* tensor);

// Returns the index that a Python function returns; -1 with a Python exception set.
long ask_number(PyObject* function);

// Finds the address of a tensor's memory. Returns false with a Python exception set.
bool find_memory(const Frontend& frontend, PyObject* tensor, void** address);

// Called once, before the others. Returns false with a Python exception set.
bool prepare_frontend();

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_FRONTEND_H_
