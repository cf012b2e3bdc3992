// The backward passes of recorded calls: the state shared by all calls of a plan, and the
// computation of the cotangents of one call, by a kernel alone if possible.
#ifndef BRIDGE_BINDINGS_TORCH_BACKWARD_H_
#define BRIDGE_BINDINGS_TORCH_BACKWARD_H_

#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/torch/functions.h"

namespace bridge::bindings::recorded {

using namespace torch::autograd;

// A backward pass for one set of given and wanted cotangents, as one call of a kernel if possible.
struct Step {
  uint64_t bits;
  Py_ssize_t kernel;                 // index in the list of kernels; -1: not one kernel
  std::vector<Py_ssize_t> picked;    // its operands: indices in (*kept, *cotangents, None)
  std::vector<Py_ssize_t> arranged;  // cotangents of the operands: indices in its results; -1: none
};

// The state shared by all calls of a plan. Its Python objects are in a tuple with the capsule that
// owns it, visible to the garbage collector.
struct Recorder {
  int64_t number;
  std::string name;
  std::vector<Py_ssize_t> kept;    // residuals: indices of operands, then of results
  std::vector<Py_ssize_t> wanted;  // indices of the results that the call returns
  PyObject* members;               // the tuple, which owns this
  std::deque<Step> steps;          // a deque: adding leaves the others in place
};
// kKernels is a list: for each step the kernel, and the function to call if the kernel returns
// None.
enum Member : Py_ssize_t { kKernel, kOtherwise, kLikes, kOnlyStep, kPull, kKernels, kCapsule };

// Recorders, and the `likes` of existing nodes (or None), by number: compiled autograd can store
// numbers only. Guarded by the GIL.
inline std::unordered_map<int64_t, Recorder*> recorders;
inline std::unordered_map<int64_t, PyObject*> remembered;

// Holds the GIL. pybind11's class asks for a state of its own first, which takes longer.
struct Gil {
  Gil() : state(PyGILState_Ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state); }
  PyGILState_STATE state;
};

[[noreturn]] inline void raise() {
  python_error error;
  error.persist();
  throw std::move(error);
}

inline PyObject* checked(PyObject* object) {
  if (object == nullptr) raise();
  return object;
}

inline THPObjectPtr wrapped(const variable_list& tensors) {
  THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(tensors.size()))));
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     checked(THPVariable_Wrap(tensors[i])));
  }
  return tuple;
}

// Returns the tensor of an operand or a result; an undefined one for None.
inline at::Tensor unwrapped(PyObject* object) {
  if (object == Py_None) return {};
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ", Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

inline FunctionTable kFunctionTable = {
    libtorch::of,
    libtorch::take,
    libtorch::give,
    libtorch::drop,
    libtorch::describe,
    libtorch::make_empty,
    libtorch::is_observed,
    libtorch::requires_grad,
    libtorch::is_overridden,
    nullptr,
};

using Operands = c10::SmallVector<const at::Tensor*, 8>;
using Results = c10::SmallVector<at::Tensor, 4>;

// Runs a kernel on tensors, nullptr for absent ones. Returns false if it has not run.
inline bool run(PyObject* kernel, const Operands& operands, bool watched, Results* results) {
  if (kFunctionTable.run == nullptr) return false;
  c10::SmallVector<TorchTensor*, 8> given;
  for (const at::Tensor* operand : operands) {
    given.push_back(operand == nullptr ? nullptr : libtorch::borrowed(*operand));
  }
  TorchTensor* made[BRIDGE_MAX_PROGRAM_RESULTS];
  const int count = kFunctionTable.run(kernel, given.data(), given.size(), watched, made);
  for (int i = 0; i < count; ++i) results->push_back(libtorch::taken(made[i]));
  return count >= 0;
}

// Returns the cotangents of `count` operands from a tuple, at these places or in order.
inline variable_list unwrapped(PyObject* tuple, size_t count,
                               const std::vector<Py_ssize_t>* places) {
  TORCH_INTERNAL_ASSERT(PyTuple_Check(tuple));
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple);
  TORCH_INTERNAL_ASSERT(places != nullptr || static_cast<size_t>(size) == count);
  variable_list tensors(count);
  for (size_t i = 0; i < count; ++i) {
    const Py_ssize_t place = places == nullptr ? static_cast<Py_ssize_t>(i) : (*places)[i];
    if (place >= 0 && place < size) tensors[i] = unwrapped(PyTuple_GET_ITEM(tuple, place));
  }
  return tensors;
}

inline THPObjectPtr flags(uint64_t bits, size_t first, size_t count) {
  THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(count))));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     PyBool_FromLong(static_cast<long>(bits >> (first + i) & 1)));
  }
  return tuple;
}

inline bool read_numbers(PyObject* tuple, std::vector<Py_ssize_t>* numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    numbers->push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i)));
  }
  return PyErr_Occurred() == nullptr;
}

// Returns the step for `bits`: first one bit for each operand with a wanted cotangent, then one for
// each given cotangent. The list of kernels may grow during the call.
inline const Step& step_of(Recorder& recorder, uint64_t bits, size_t count, size_t given) {
  for (const Step& step : recorder.steps) {
    if (step.bits == bits) return step;
  }
  THPObjectPtr wanted = flags(bits, 0, count), cotangents = flags(bits, count, given);
  PyObject* arguments[] = {wanted.get(), cotangents.get()};
  const THPObjectPtr answer(checked(PyObject_Vectorcall(
      PyTuple_GET_ITEM(recorder.members, kOnlyStep), arguments, std::size(arguments), nullptr)));
  Step step{bits, -1, {}, {}};
  PyObject *kernel, *otherwise, *picked, *arranged;
  if (answer.get() != Py_None) {
    PyObject* list = PyTuple_GET_ITEM(recorder.members, kKernels);
    step.kernel = PyList_GET_SIZE(list);
    if (PyArg_ParseTuple(const_cast<PyObject*>(answer.get()), "OOO!O!", &kernel, &otherwise,
                         &PyTuple_Type, &picked, &PyTuple_Type, &arranged) == 0 ||
        !read_numbers(picked, &step.picked) || !read_numbers(arranged, &step.arranged) ||
        PyList_Append(list, kernel) != 0 || PyList_Append(list, otherwise) != 0) {
      raise();
    }
  }
  recorder.steps.push_back(std::move(step));
  return recorder.steps.back();
}

// Returns the operands of a step; nullptr for an absent one.
inline Operands operands_of(const Step& step, const variable_list& saved,
                            const variable_list& cotangents) {
  Operands operands;
  for (const Py_ssize_t picked : step.picked) {
    auto place = static_cast<size_t>(picked);
    const variable_list& list = place < saved.size() ? saved : cotangents;
    if (place >= saved.size()) place -= saved.size();
    const bool is_there = place < list.size() && list[place].defined();
    operands.push_back(is_there ? &list[place] : nullptr);
  }
  return operands;
}

// Calls a kernel through Python, and the next function in the list if the kernel returns None.
inline THPObjectPtr called(PyObject* kernels, Py_ssize_t kernel, const Operands& operands) {
  std::vector<THPObjectPtr> held;
  std::vector<PyObject*> given;
  for (const at::Tensor* operand : operands) {
    held.emplace_back(operand == nullptr ? Py_NewRef(Py_None)
                                         : checked(THPVariable_Wrap(*operand)));
    given.push_back(held.back().get());
  }
  const auto call = [&](Py_ssize_t i) {
    return THPObjectPtr(checked(
        PyObject_Vectorcall(PyList_GET_ITEM(kernels, i), given.data(), given.size(), nullptr)));
  };
  THPObjectPtr made = call(kernel);
  if (made.get() == Py_None) made = call(kernel + 1);
  return made;
}

// Returns the cotangents of the operands. Tensors are released before their Python objects:
// otherwise a Python object would outlive its last reference, and be freed after the GIL is
// released.
inline variable_list pull(Recorder& recorder, const AutogradContext& context, size_t count,
                          PyObject* likes, variable_list saved, variable_list cotangents) {
  TORCH_INTERNAL_ASSERT(count + cotangents.size() <= 64);  // MOST_VALUES in nodes.py
  uint64_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits |= uint64_t{context.needs_input_grad(i)} << i;
  for (size_t i = 0; i < cotangents.size(); ++i) {
    bits |= uint64_t{cotangents[i].defined()} << (count + i);
  }
  const Step& step = step_of(recorder, bits, count, cotangents.size());
  if (step.kernel >= 0) {
    PyObject* kernels = PyTuple_GET_ITEM(recorder.members, kKernels);
    const Operands operands = operands_of(step, saved, cotangents);
    Results results;
    if (run(PyList_GET_ITEM(kernels, step.kernel), operands, true, &results)) {
      variable_list arranged(count);
      for (size_t i = 0; i < count; ++i) {
        const auto place = static_cast<size_t>(step.arranged[i]);  // -1: beyond all results
        if (place < results.size()) arranged[i] = results[place];
      }
      return arranged;
    }
    THPObjectPtr made = called(kernels, step.kernel, operands);
    saved.clear();
    cotangents.clear();
    return unwrapped(made.get(), count, &step.arranged);
  }
  THPObjectPtr kept = wrapped(saved), given = wrapped(cotangents), wanted = flags(bits, 0, count);
  PyObject* arguments[] = {kept.get(), given.get(), wanted.get(), likes};
  THPObjectPtr made(checked(PyObject_Vectorcall(PyTuple_GET_ITEM(recorder.members, kPull),
                                                arguments, std::size(arguments), nullptr)));
  saved.clear();
  cotangents.clear();
  return unwrapped(made.get(), count, nullptr);
}

}  // namespace bridge::bindings::recorded

#endif  // BRIDGE_BINDINGS_TORCH_BACKWARD_H_
