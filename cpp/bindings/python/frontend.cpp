#include "bindings/python/frontend.h"

#include <cstring>

#include "bindings/python/stable_abi.h"

namespace bridge::bindings {
namespace {

constexpr Py_ssize_t kFrontendSize = sizeof(Frontend) / sizeof(PyObject*);

const FunctionTable* kFunctionTable = nullptr;
PyObject* kCurrentLevel;
PyObject* kIsProfilerEnabled;

// Calls a function without arguments. A function written in C is called directly, because a call
// through Python's interpreter costs as much as such a function.
PyObject* ask(PyObject* function) {
  if (PyCFunction_CheckExact(function) && PyCFunction_GET_FLAGS(function) == METH_NOARGS) {
    return PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), nullptr);
  }
  return PyObject_CallNoArgs(function);
}

// Calls an unbound method in the same way.
PyObject* ask(PyObject* method, PyObject* tensor) {
#ifndef Py_LIMITED_API  // which does not show the function of a descriptor
  if (Py_IS_TYPE(method, &PyMethodDescr_Type)) {
    const auto* descriptor = reinterpret_cast<PyMethodDescrObject*>(method);
    if (descriptor->d_method->ml_flags == METH_NOARGS &&
        PyObject_TypeCheck(tensor, PyDescr_TYPE(descriptor))) {
      return descriptor->d_method->ml_meth(tensor, nullptr);
    }
  }
#endif
  return PyObject_CallOneArg(method, tensor);
}

// Returns 1 or 0; -1 with a Python exception set. Releases `answer`.
int is_true(PyObject* answer) {
  if (answer == nullptr) return -1;
  const int truth = answer == Py_None || answer == Py_False ? 0 : PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

}  // namespace

const FunctionTable* libtorch_functions() { return kFunctionTable; }

bool use_function_table(PyObject* capsule, decltype(FunctionTable::run) run) {
  auto* table = static_cast<FunctionTable*>(PyCapsule_GetPointer(capsule, kFunctionTableName));
  if (table == nullptr) return false;
  table->run = run;
  kFunctionTable = table;
  return true;
}

bool is_profiled(const Frontend& frontend) {
  return PyDict_GetItem(frontend.profiler, kIsProfilerEnabled) != Py_False;
}

namespace {

// Returns 1 if a state makes torch observe every call, otherwise 0; -1 with a Python exception set.
// *grad: autograd may record calls.
int is_observed(const Frontend& frontend, bool* grad) {
  if (kFunctionTable != nullptr) return static_cast<int>(kFunctionTable->is_observed(grad));
  const Py_ssize_t states = PyTuple_GET_SIZE(frontend.states);
  for (Py_ssize_t i = 0; i < states; ++i) {
    const int on = is_true(ask(PyTuple_GET_ITEM(frontend.states, i)));
    if (on != 0) return on;
  }
  const int is_enabled = is_true(ask(frontend.is_grad_enabled));
  *grad = is_enabled > 0;
  return is_enabled < 0 ? -1 : 0;
}

// Returns the observer of every call; *grad as above.
Watch who_watches_all(const Frontend& frontend, bool* grad) {
  const int observed = is_observed(frontend, grad);
  if (observed != 0) return observed < 0 ? Watch::error : Watch::other;
  PyObject* level = PyDict_GetItemWithError(frontend.forward_levels, kCurrentLevel);
  if (level == nullptr) return Watch::error;
  if (PyLong_AsLong(level) >= 0) return Watch::other;
  return is_profiled(frontend) ? Watch::other : Watch::nothing;
}

}  // namespace

Watch who_watches(const Frontend& frontend, PyObject* const* operands, size_t count) {
  bool grad;
  const Watch all = who_watches_all(frontend, &grad);
  if (all != Watch::nothing) return all;
  bool recorded = false;
  const Py_ssize_t types = PyTuple_GET_SIZE(frontend.types);
  for (size_t i = 0; i < count; ++i) {
    if (operands[i] == Py_None) continue;
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(operands[i]));
    Py_ssize_t known = 0;
    while (known < types && PyTuple_GET_ITEM(frontend.types, known) != type) ++known;
    if (known == types) return Watch::other;
    if (!grad || recorded) continue;
    if (kFunctionTable != nullptr) {
      recorded = kFunctionTable->requires_grad(kFunctionTable->of(operands[i]));
      continue;
    }
    // The descriptor is known: finding it by name costs more than reading it.
    const int required =
        is_true(descriptor_get(frontend.requires_grad)(frontend.requires_grad, operands[i], type));
    if (required < 0) return Watch::error;
    recorded = required > 0;
  }
  return recorded ? Watch::gradient : Watch::nothing;
}

Watch who_watches(const Frontend& frontend, const FunctionTable& table,
                  TorchTensor* const* operands, size_t count) {
  bool grad;
  const Watch all = who_watches_all(frontend, &grad);
  if (all != Watch::nothing) return all;
  bool recorded = false;
  for (size_t i = 0; i < count; ++i) {
    if (operands[i] == nullptr) continue;
    if (table.is_overridden(operands[i])) return Watch::other;
    recorded = recorded || (grad && table.requires_grad(operands[i]));
  }
  return recorded ? Watch::gradient : Watch::nothing;
}

bool holds_its_values(const Frontend& frontend, PyObject* tensor) {
  return is_true(ask(frontend.is_negative, tensor)) == 0;
}

long ask_number(PyObject* function) {
  PyObject* answer = ask(function);
  if (answer == nullptr) return -1;
  const long value = PyLong_AsLong(answer);
  Py_DECREF(answer);
  return value;
}

bool find_memory(const Frontend& frontend, PyObject* tensor, void** address) {
  PyObject* number = ask(frontend.data_ptr, tensor);
  if (number == nullptr) return false;
  *address = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return *address != nullptr || !PyErr_Occurred();
}

bool read_frontend(PyObject* tuple, Frontend* frontend) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != kFrontendSize) {
    PyErr_Format(PyExc_ValueError, "frontend: expected a tuple of %zd", kFrontendSize);
    return false;
  }
  PyObject* fields[kFrontendSize];
  for (Py_ssize_t i = 0; i < kFrontendSize; ++i) fields[i] = PyTuple_GET_ITEM(tuple, i);
  std::memcpy(frontend, fields, sizeof *frontend);
  if (!PyTuple_Check(frontend->types) || !PyTuple_Check(frontend->states) ||
      !PyDict_Check(frontend->forward_levels) || !PyDict_Check(frontend->profiler) ||
      descriptor_get(frontend->requires_grad) == nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "frontend: types and states are tuples, forward_levels and profiler dicts, "
                    "requires_grad a descriptor");
    return false;
  }
  return true;
}

bool prepare_frontend() {
  kCurrentLevel = PyUnicode_InternFromString("_current_level");
  kIsProfilerEnabled = PyUnicode_InternFromString("_is_profiler_enabled");
  return kCurrentLevel != nullptr && kIsProfilerEnabled != nullptr;
}

}  // namespace bridge::bindings
