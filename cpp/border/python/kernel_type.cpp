#include "border/python/kernel_type.h"

#include <structmember.h>

#include <climits>
#include <cstddef>
#include <new>
#include <vector>

#include "border/python/fast_call.h"
#include "border/python/python_call.h"

namespace bridge::border {
namespace {

// Integers of a tuple of the given length, each between kMadeByPlan and INT_MAX.
bool read_integers(PyObject* tuple, size_t count, const char* what, int* out) {
  if (static_cast<size_t>(PyTuple_GET_SIZE(tuple)) != count) {
    PyErr_Format(PyExc_ValueError, "%zd %s, expected %zu", PyTuple_GET_SIZE(tuple), what, count);
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const long value = PyLong_AsLong(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
    if (value == -1 && PyErr_Occurred()) return false;
    if (value < kMadeByPlan || value > INT_MAX) {
      PyErr_Format(PyExc_ValueError, "%s: %ld is out of range", what, value);
      return false;
    }
    out[i] = static_cast<int>(value);
  }
  return true;
}

// kernel.add(dtypes, attributes, examples, plan[, code]): operands of these dtypes are taken from
// now on.
PyObject* add(PyObject* object, PyObject* arguments) {
  auto& self = *reinterpret_cast<Kernel*>(object);
  PyObject *dtypes, *attributes, *examples;
  Variant variant;
  variant.code = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!O!O|O!", &PyTuple_Type, &dtypes, &PyTuple_Type, &attributes,
                        &PyTuple_Type, &examples, &variant.plan, &PyBytes_Type, &variant.code)) {
    return nullptr;
  }
  variant.operand_count = static_cast<size_t>(PyTuple_GET_SIZE(dtypes));
  if (variant.operand_count > kMaxOperands) {
    PyErr_Format(PyExc_ValueError, "%zu operands, expected at most %zu", variant.operand_count,
                 kMaxOperands);
    return nullptr;
  }
  variant.result_count = static_cast<size_t>(PyTuple_GET_SIZE(examples));
  if (!can_have_results(*self.op, variant.result_count)) {
    PyErr_Format(PyExc_ValueError, "%s: there are not %zu results", self.op->counts.name,
                 variant.result_count);
    return nullptr;
  }
  if (!read_integers(dtypes, variant.operand_count, "dtypes", variant.dtypes) ||
      !read_attributes(*self.op, attributes, variant.attributes) ||
      !read_integers(examples, variant.result_count, "examples", variant.examples)) {
    return nullptr;
  }
  for (size_t i = 0; i < variant.result_count; ++i) {
    if (variant.examples[i] >= static_cast<int>(variant.operand_count)) {
      PyErr_SetString(PyExc_ValueError, "examples: there is no such operand");
      return nullptr;
    }
  }
  try {
    self.variants->push_back(variant);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_INCREF(variant.plan);
  Py_XINCREF(variant.code);
  Py_RETURN_NONE;
}

// Kernel(name, frontend)
PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* name;
  PyObject* frontend;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &frontend)) return nullptr;
  Frontend fields;
  const Op* op = require_op(name);
  if (op == nullptr || !read_frontend(frontend, &fields)) return nullptr;
  auto* self = reinterpret_cast<Kernel*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = fast_call;
  self->op = op;
  self->frontend_tuple = Py_NewRef(frontend);
  self->frontend = fields;
  self->variants = new (std::nothrow) std::vector<Variant>;
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
    std::vector<Variant> variants;
    variants.swap(*self->variants);
    for (const Variant& variant : variants) {
      Py_DECREF(variant.plan);
      Py_XDECREF(variant.code);
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
  type->tp_free(object);
  Py_DECREF(type);
}

PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kMethods[] = {
    {"add", add, METH_VARARGS, "add(dtypes, attributes, examples, plan[, code])"},
    {"compute", as_method(fast_compute), METH_FASTCALL, "compute(*operands) -> tuple | None"},
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

}  // namespace

bool add_kernel_type(PyObject* module) {
  if (!prepare_frontend()) return false;
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) return false;
  const int status = PyModule_AddObjectRef(module, "Kernel", type);
  Py_DECREF(type);
  return status == 0;
}

}  // namespace bridge::border
