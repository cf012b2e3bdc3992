#include "frontend.h"

#include <cstring>

namespace bridge::python {
namespace {

constexpr Py_ssize_t kFrontendSize = sizeof(Frontend) / sizeof(PyObject*);

PyObject* kRequiresGrad;
PyObject* kCurrentLevel;

// -1 with a Python exception set.
int is_true(PyObject* answer) {
  if (answer == nullptr) return -1;
  const int truth = answer == Py_None || answer == Py_False ? 0 : PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

}  // namespace

Watch who_watches(const Frontend& frontend, PyObject* const* operands, size_t count) {
  const Py_ssize_t states = PyTuple_GET_SIZE(frontend.states);
  for (Py_ssize_t i = 0; i < states; ++i) {
    const int on = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(frontend.states, i)));
    if (on != 0) return on < 0 ? Watch::error : Watch::other;
  }
  PyObject* level = PyDict_GetItemWithError(frontend.forward_levels, kCurrentLevel);
  if (level == nullptr) return Watch::error;
  if (PyLong_AsLong(level) >= 0) return Watch::other;
  const int grad = is_true(PyObject_CallNoArgs(frontend.is_grad_enabled));
  if (grad < 0) return Watch::error;
  bool recorded = false;
  const Py_ssize_t types = PyTuple_GET_SIZE(frontend.types);
  for (size_t i = 0; i < count; ++i) {
    if (operands[i] == Py_None) continue;
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(operands[i]));
    Py_ssize_t known = 0;
    while (known < types && PyTuple_GET_ITEM(frontend.types, known) != type) ++known;
    if (known == types) return Watch::other;
    if (grad == 0 || recorded) continue;
    const int required = is_true(PyObject_GetAttr(operands[i], kRequiresGrad));
    if (required < 0) return Watch::error;
    recorded = required > 0;
  }
  return recorded ? Watch::gradient : Watch::nothing;
}

long ask_number(PyObject* function) {
  PyObject* answer = PyObject_CallNoArgs(function);
  if (answer == nullptr) return -1;
  const long value = PyLong_AsLong(answer);
  Py_DECREF(answer);
  return value;
}

bool read_frontend(PyObject* tuple, Frontend* frontend) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != kFrontendSize) {
    PyErr_Format(PyExc_ValueError, "frontend: expected a tuple of %zd", kFrontendSize);
    return false;
  }
  std::memcpy(frontend, &PyTuple_GET_ITEM(tuple, 0), sizeof *frontend);
  if (!PyTuple_Check(frontend->types) || !PyTuple_Check(frontend->states) ||
      !PyDict_Check(frontend->forward_levels)) {
    PyErr_SetString(PyExc_TypeError,
                    "frontend: types and states are tuples, forward_levels a dict");
    return false;
  }
  return true;
}

bool prepare_frontend() {
  kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  kCurrentLevel = PyUnicode_InternFromString("_current_level");
  return kRequiresGrad != nullptr && kCurrentLevel != nullptr;
}

}  // namespace bridge::python
