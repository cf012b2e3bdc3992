// The backward passes of recorded calls: what all calls of a plan have in common, and how the
// cotangents of one are made, by a kernel alone where that is all there is to do.
#ifndef BRIDGE_BORDER_TORCH_BACKWARD_H_
#define BRIDGE_BORDER_TORCH_BACKWARD_H_

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

#include "border/torch/lending.h"

namespace bridge::border::recorded {

using namespace torch::autograd;

// A backward pass that is one call of a kernel.
struct Step {
  uint64_t bits;
  Py_ssize_t kernel;                 // where it is in the list; -1: it is not
  std::vector<Py_ssize_t> picked;    // its operands, of (*kept, *cotangents, None)
  std::vector<Py_ssize_t> arranged;  // the cotangents of the operands, of its results; -1: none
};

// What is the same in all calls of a plan. The Python objects that belong to it stand in a tuple
// with the capsule that holds it, where the garbage collector sees them.
struct Recorder {
  int64_t number;
  std::string name;
  std::vector<Py_ssize_t> kept;    // of the operands, then the results
  std::vector<Py_ssize_t> wanted;  // of the results: what the call returns
  PyObject* members;               // the tuple, which owns this
  std::deque<Step> steps;          // what is added leaves the others where they are
};
// kKernels is a list: of each step the kernel, and what is called where it answers with None.
enum Member : Py_ssize_t { kKernel, kOtherwise, kLikes, kOnlyStep, kPull, kKernels, kCapsule };

// By number, for compiled autograd, which keeps numbers alone: recorders, and what nodes that are
// there remember of operands (or None). Under the GIL.
inline std::unordered_map<int64_t, Recorder*> recorders;
inline std::unordered_map<int64_t, PyObject*> remembered;

// What pybind11 has for it asks for its own state first, which takes longer.
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

// An operand or a result; None is no tensor.
inline at::Tensor unwrapped(PyObject* object) {
  if (object == Py_None) return {};
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ", Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

inline Lent kLent = {
    lending::of,
    lending::take,
    lending::give,
    lending::drop,
    lending::describe,
    lending::make_empty,
    lending::is_observed,
    lending::requires_grad,
    lending::is_overridden,
    nullptr,
};

using Operands = c10::SmallVector<const at::Tensor*, 8>;
using Results = c10::SmallVector<at::Tensor, 4>;

// Whether a kernel has run on tensors, of which those that are not there are nullptr.
inline bool run(PyObject* kernel, const Operands& operands, bool watched, Results* results) {
  if (kLent.run == nullptr) return false;
  c10::SmallVector<TorchTensor*, 8> given;
  for (const at::Tensor* operand : operands) {
    given.push_back(operand == nullptr ? nullptr : lending::borrowed(*operand));
  }
  TorchTensor* made[BRIDGE_MAX_PROGRAM_RESULTS];
  const int count = kLent.run(kernel, given.data(), given.size(), watched, made);
  for (int i = 0; i < count; ++i) results->push_back(lending::taken(made[i]));
  return count >= 0;
}

// The cotangents of the operands that a tuple has, at these places or in order.
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

// What makes the cotangents that `bits` asks for: first a bit for each operand, then one for each
// cotangent that is given. The list of Python objects may grow while it is asked for.
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

// Those of a step; nullptr where there is none.
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

// What a kernel in Python answers, or what runs where it answers with None.
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

// The cotangents of the operands. Tensors are let go of before what Python had of them: the other
// way round Python's part would outlive its last reference, to be freed once the GIL is given up.
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
        const auto place = static_cast<size_t>(step.arranged[i]);  // of -1: beyond them
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

}  // namespace bridge::border::recorded

#endif  // BRIDGE_BORDER_TORCH_BACKWARD_H_
