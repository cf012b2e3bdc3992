#include "bindings/python/kernel_type.h"

#include <structmember.h>

#include <climits>
#include <cstddef>
#include <deque>
#include <new>

#include "bindings/python/fast_call.h"
#include "bindings/python/python_call.h"
#include "bindings/python/stable_abi.h"

namespace bridge::bindings {
namespace {

bool read_integer(PyObject* object, long highest, const char* what, int* out) {
  const long value = PyLong_AsLong(object);
  if (value == -1 && PyErr_Occurred()) return false;
  if (value < kUnwanted || value > highest) {
    PyErr_Format(PyExc_ValueError, "%s: %ld is out of range", what, value);
    return false;
  }
  *out = static_cast<int>(value);
  return true;
}

// Reads the description of a result: `like`, or (leading, columns, dtype_code, dtype).
bool read_made(PyObject* object, size_t arrays, Made* result) {
  if (!PyTuple_Check(object)) {
    return read_integer(object, static_cast<long>(arrays) - 1, "made", &result->like);
  }
  result->like = kLikeNone;
  return PyArg_ParseTuple(object, "iiiO", &result->leading, &result->columns, &result->dtype_code,
                          &result->dtype) != 0;
}

// kernel.add(dtypes, attributes, made, plan, code): adds a variant for operands of these dtypes.
PyObject* add(PyObject* object, PyObject* arguments) {
  auto& self = *reinterpret_cast<Kernel*>(object);
  PyObject *dtypes, *attributes;
  Variant variant;
  if (!PyArg_ParseTuple(arguments, "O!O!O!OO!", &PyTuple_Type, &dtypes, &PyTuple_Type, &attributes,
                        &PyTuple_Type, &variant.made, &variant.plan, &PyBytes_Type,
                        &variant.bytes)) {
    return nullptr;
  }
  variant.operand_count = static_cast<size_t>(PyTuple_GET_SIZE(dtypes));
  if (variant.operand_count > kMaxOperands) {
    PyErr_Format(PyExc_ValueError, "%zu operands, expected at most %zu", variant.operand_count,
                 kMaxOperands);
    return nullptr;
  }
  variant.result_count = static_cast<size_t>(PyTuple_GET_SIZE(variant.made));
  if (variant.result_count > kMaxResults) {
    PyErr_Format(PyExc_ValueError, "%zu results, expected at most %zu", variant.result_count,
                 kMaxResults);
    return nullptr;
  }
  if (!read_attributes(attributes, variant.attributes) ||
      !read_code(variant.bytes, &variant.code)) {
    return nullptr;
  }
  for (size_t i = 0; i < variant.operand_count; ++i) {
    PyObject* dtype = PyTuple_GET_ITEM(dtypes, static_cast<Py_ssize_t>(i));
    if (!read_integer(dtype, INT_MAX, "dtypes", &variant.dtypes[i])) return nullptr;
  }
  for (size_t i = 0; i < variant.result_count; ++i) {
    PyObject* made = PyTuple_GET_ITEM(variant.made, static_cast<Py_ssize_t>(i));
    if (!read_made(made, variant.operand_count + i, &variant.results[i])) return nullptr;
  }
  try {
    // A malformed bytecode is reported by the call.
    const bool is_known =
        interpreter::know(variant.code.words, variant.code.count, &variant.program);
    self.variants->push_back(variant);
    Variant& added = self.variants->back();
    if (is_known) added.code.known = &added.program;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_INCREF(variant.made);
  Py_INCREF(variant.plan);
  Py_INCREF(variant.bytes);
  Py_RETURN_NONE;
}

// Kernel(name, frontend)
PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* name;
  PyObject* frontend;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &frontend)) return nullptr;
  Frontend fields;
  if (!require_op(name) || !read_frontend(frontend, &fields)) return nullptr;
  auto* self = reinterpret_cast<Kernel*>(PyType_GenericAlloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = fast_call;
  self->frontend_tuple = Py_NewRef(frontend);
  self->frontend = fields;
  self->variants = new (std::nothrow) std::deque<Variant>;
  if (self->variants == nullptr) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Kernel*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->frontend_tuple);
  if (self->variants == nullptr) return 0;
  for (const Variant& variant : *self->variants) Py_VISIT(variant.plan);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Kernel*>(object);
  if (self->variants != nullptr) {
    std::deque<Variant> variants;
    variants.swap(*self->variants);
    for (const Variant& variant : variants) {
      Py_DECREF(variant.made);
      Py_DECREF(variant.plan);
      Py_DECREF(variant.bytes);
    }
  }
  return 0;
}

void destroy(PyObject* object) {
  auto* self = reinterpret_cast<Kernel*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  delete self->variants;
  Py_XDECREF(self->frontend_tuple);
  PyObject_GC_Del(object);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kMethods[] = {
    {"add", add, METH_VARARGS, "add(dtypes, attributes, made, plan, code)"},
    {"compute", as_method(fast_compute), METH_FASTCALL, "compute(*operands) -> tuple | None"},
    {"recorded", as_method(fast_recorded), METH_FASTCALL, "recorded(*operands) -> plan | None"},
    {"write", as_method(fast_write), METH_FASTCALL, "write(out, *operands) -> bool"},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Kernel, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, kMethods},
    {Py_tp_members, kMembers},
    {0, nullptr},
};

PyType_Spec kSpec = {"bridge._native.Kernel", sizeof(Kernel), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, kSlots};

PyObject* kKernelType;

}  // namespace

bool is_kernel(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == kKernelType;
}

bool add_kernel_type(PyObject* module) {
  if (!prepare_frontend() || !prepare_fast_call()) return false;
  kKernelType = PyType_FromSpec(&kSpec);
  return kKernelType != nullptr && PyModule_AddObjectRef(module, "Kernel", kKernelType) == 0;
}

}  // namespace bridge::bindings
