// Names of Python's C API that its stable ABI lacks, expressed by functions of the stable ABI. A
// build for one version of Python uses the originals, most of which are inlined.
#ifndef BRIDGE_BINDINGS_PYTHON_STABLE_ABI_H_
#define BRIDGE_BINDINGS_PYTHON_STABLE_ABI_H_

#include <Python.h>

namespace bridge::bindings {

#ifdef Py_LIMITED_API

inline Py_ssize_t PyTuple_GET_SIZE(PyObject* tuple) { return PyTuple_Size(tuple); }
inline PyObject* PyTuple_GET_ITEM(PyObject* tuple, Py_ssize_t i) {
  return PyTuple_GetItem(tuple, i);
}
inline void PyTuple_SET_ITEM(PyObject* tuple, Py_ssize_t i, PyObject* item) {
  PyTuple_SetItem(tuple, i, item);
}
inline Py_ssize_t PyBytes_GET_SIZE(PyObject* bytes) { return PyBytes_Size(bytes); }
inline const char* PyBytes_AS_STRING(PyObject* bytes) { return PyBytes_AsString(bytes); }
inline const char* PyUnicode_AsUTF8(PyObject* text) {
  return PyUnicode_AsUTF8AndSize(text, nullptr);
}
inline int PyCFunction_GET_FLAGS(PyObject* function) { return PyCFunction_GetFlags(function); }
inline PyCFunction PyCFunction_GET_FUNCTION(PyObject* function) {
  return PyCFunction_GetFunction(function);
}
inline PyObject* PyCFunction_GET_SELF(PyObject* function) { return PyCFunction_GetSelf(function); }
inline PyObject* PyObject_CallOneArg(PyObject* function, PyObject* argument) {
  PyObject* arguments[] = {nullptr, argument};  // the first place is the callee's
  return PyObject_Vectorcall(function, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}
inline descrgetfunc descriptor_get(PyObject* descriptor) {
  return reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get));
}

#else

inline descrgetfunc descriptor_get(PyObject* descriptor) {
  return Py_TYPE(descriptor)->tp_descr_get;
}

#endif

// Raises a TypeError "expected <text>, got <type>" about an object.
inline void raise_unexpected(const char* text, PyObject* object) {
  PyObject* name = PyType_GetName(Py_TYPE(object));
  if (name != nullptr) PyErr_Format(PyExc_TypeError, "expected %s, got %U", text, name);
  Py_XDECREF(name);
}

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_STABLE_ABI_H_
