#include "kernel_type.h"

#include <structmember.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include "frontend.h"
#include "python_op.h"
#include "tensors.h"

namespace bridge::python {
namespace {

// Calls on fewer elements run in the calling thread, whatever the thread count.
constexpr int64_t kFewElements = 1 << 14;
constexpr int kUnwanted = -1;

// A combination of operand dtypes that the kernel takes, and what it means.
struct Variant {
  size_t operand_count;
  int32_t dtypes[kMaxOperands];  // bridge_dtype, or kUnwanted for an absent operand
  int32_t attributes[kMaxAttributes];
  int examples[kMaxResults];  // the operand that a result is allocated like, or kUnwanted
  PyObject* plan;             // what Frontend::differentiate is told
};

struct Kernel {
  PyObject_HEAD vectorcallfunc vectorcall;
  const PythonOp* op;
  PyObject* frontend_tuple;
  Frontend frontend;
  std::vector<Variant>* variants;
};

// Whether an operand lies in memory in the plainest way. One element is left out with the other
// layouts: those may be views with the negative bit set (the imaginary part of a conjugate), which
// the exchange does not tell, and a view of an imaginary part has no two elements side by side.
bool is_compact(const Operand& operand) {
  int64_t elements = 1;
  for (int32_t i = operand.ndim - 1; i >= 0; --i) {
    if (operand.shape[i] != 1 && operand.strides != nullptr && operand.strides[i] != elements) {
      return false;
    }
    elements *= operand.shape[i];
  }
  return elements != 1;
}

int64_t elements_of(const Operand& operand) {
  int64_t elements = 1;
  for (int32_t i = 0; i < operand.ndim; ++i) elements *= operand.shape[i];
  return elements;
}

// Operands of an ordinary call: compact, of dtypes that a variant takes, on the current device.
// nullptr if they are not.
const Variant* find_variant(const Kernel& self, const Operand* operands, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (operands[i].present && !is_compact(operands[i])) return nullptr;
  }
  for (const Variant& variant : *self.variants) {
    if (variant.operand_count != count) continue;
    size_t same = 0;
    while (same < count &&
           (operands[same].present ? operands[same].dtype : kUnwanted) == variant.dtypes[same]) {
      ++same;
    }
    if (same < count) continue;
    if (operands[0].device == Device::cpu) return &variant;
    PyObject* ask = self.frontend.current_device;
    return ask != Py_None && ask_number(ask) == operands[0].device_index ? &variant : nullptr;
  }
  return nullptr;
}

// Runs the kernel into results that are there; the outcome as PythonOp::run has it.
int run_into(const Kernel& self, const Variant& variant, Tensors<kMaxOperands>& operands,
             const Operand* results, PyObject* first) {
  // The thread count is asked for where it can matter.
  const long threads = elements_of(operands.operands()[0]) < kFewElements
                           ? 1
                           : ask_number(self.frontend.get_num_threads);
  if (threads < 1) return kRaised;
  return self.op->run({operands.operands(), operands.size(), results, variant.attributes,
                       static_cast<int32_t>(threads), operands.stream(0), self.frontend.allocate,
                       first});
}

// Memory for the wanted results, then the kernel. nullptr where that cannot be done.
PyObject* compute(const Kernel& self, const Variant& variant, Tensors<kMaxOperands>& operands,
                  PyObject* const* objects) {
  const auto result_count = static_cast<Py_ssize_t>(self.op->result_count);
  PyObject* results = PyTuple_New(result_count);
  if (results == nullptr) return nullptr;
  int outcome = kDone;
  for (Py_ssize_t i = 0; i < result_count && outcome == kDone; ++i) {
    const int example = variant.examples[i];
    PyObject* result = example == kUnwanted
                           ? Py_NewRef(Py_None)
                           : PyObject_CallOneArg(self.frontend.empty_like, objects[example]);
    if (result == nullptr) outcome = kRaised;
    PyTuple_SET_ITEM(results, i, result);
  }
  Tensors<kMaxResults> outputs;
  if (outcome == kDone && !outputs.read(results)) outcome = kRaised;
  if (outcome == kDone) {
    outcome = run_into(self, variant, operands, outputs.operands(), objects[0]);
  }
  if (outcome == kDone) return results;
  Py_DECREF(results);
  return nullptr;
}

// Lets autograd record the call; its results as a tuple with None for the unwanted.
PyObject* differentiate(const Kernel& self, const Variant& variant, PyObject* const* objects,
                        size_t count) {
  PyObject* arguments[kMaxOperands + 1] = {variant.plan};
  std::copy(objects, objects + count, arguments + 1);
  PyObject* outputs =
      PyObject_Vectorcall(self.frontend.differentiate, arguments, count + 1, nullptr);
  if (outputs == nullptr) return nullptr;
  const auto result_count = static_cast<Py_ssize_t>(self.op->result_count);
  PyObject* results = PyTuple_New(result_count);
  Py_ssize_t taken = 0;
  for (Py_ssize_t i = 0; results != nullptr && i < result_count; ++i) {
    PyObject* result = Py_None;
    if (variant.examples[i] != kUnwanted) {
      result = PyTuple_Check(outputs) ? PyTuple_GetItem(outputs, taken++) : outputs;
    }
    if (result == nullptr) {
      Py_CLEAR(results);
    } else {
      PyTuple_SET_ITEM(results, i, Py_NewRef(result));
    }
  }
  Py_DECREF(outputs);
  return results;
}

// kernel(*operands): the results as a tuple, None for the unwanted ones, recorded by autograd where
// an operand requires a gradient. None where the call is not an ordinary one or cannot be made,
// which the caller's general way then deals with; exceptions on the way there are dropped for that
// reason: nothing has been written that anyone saw. Exceptions of `differentiate` are passed on.
PyObject* call(PyObject* object, PyObject* const* objects, size_t flags, PyObject* keywords) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  PyObject* results = nullptr;
  if (keywords == nullptr && count > 0 && count <= kMaxOperands) {
    const Watch watch = who_watches(self.frontend, objects, count);
    Tensors<kMaxOperands> operands;
    if ((watch == Watch::nothing || watch == Watch::gradient) && operands.read(objects, count)) {
      const Variant* variant = find_variant(self, operands.operands(), count);
      if (variant != nullptr && watch == Watch::gradient) {
        return differentiate(self, *variant, objects, count);
      }
      if (variant != nullptr) results = compute(self, *variant, operands, objects);
    }
  }
  if (results != nullptr) return results;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// kernel.compute(*operands): the same where nobody watches, which is not asked.
PyObject* compute_method(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  Tensors<kMaxOperands> operands;
  PyObject* results = nullptr;
  if (count > 0 && operands.read(objects, static_cast<size_t>(count))) {
    const Variant* variant = find_variant(self, operands.operands(), operands.size());
    if (variant != nullptr) results = compute(self, *variant, operands, objects);
  }
  if (results != nullptr) return results;
  PyErr_Clear();
  Py_RETURN_NONE;
}

bool same_kind(const Operand& a, const Operand& b) {
  return a.dtype == b.dtype && a.ndim == b.ndim && a.device == b.device &&
         std::equal(a.shape, a.shape + a.ndim, b.shape);
}

// Whether `out` can take the only wanted result of the variant, which then stands in `results`.
bool place_only_result(const Kernel& self, const Variant& variant, const Operand* operands,
                       const Operand& out, Operand* results) {
  size_t wanted = 0;
  for (size_t i = 0; i < self.op->result_count; ++i) {
    if (variant.examples[i] == kUnwanted) continue;
    if (!same_kind(out, operands[variant.examples[i]])) return false;
    results[i] = out;
    ++wanted;
  }
  return wanted == 1 && is_compact(out);
}

// kernel.write(out, *operands): whether the only result has been written into `out`. False for
// whatever is not an ordinary call that nobody watches, as in call(); nothing is written then.
PyObject* write_method(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  bool written = false;
  if (count > 1 && static_cast<size_t>(count) <= kMaxOperands &&
      who_watches(self.frontend, objects, static_cast<size_t>(count)) == Watch::nothing) {
    Tensors<1> out;
    Tensors<kMaxOperands> operands;
    Operand results[kMaxResults];
    if (out.read(objects, 1) && operands.read(objects + 1, static_cast<size_t>(count) - 1)) {
      const Variant* variant = find_variant(self, operands.operands(), operands.size());
      written =
          variant != nullptr &&
          place_only_result(self, *variant, operands.operands(), out.operands()[0], results) &&
          run_into(self, *variant, operands, results, objects[1]) == kDone;
    }
  }
  PyErr_Clear();
  return PyBool_FromLong(written);
}

bool read_op(const char* name, const PythonOp** op) {
  for (*op = kPythonOps; (*op)->name != nullptr; ++*op) {
    if (std::strcmp((*op)->name, name) == 0) return true;
  }
  PyErr_Format(PyExc_ValueError, "no op is named '%s'", name);
  return false;
}

// Integers of a tuple of the given length, each between `lowest` and INT_MAX.
template <class Integer>
bool read_integers(PyObject* tuple, size_t count, const char* what, long lowest, Integer* out) {
  if (static_cast<size_t>(PyTuple_GET_SIZE(tuple)) != count) {
    PyErr_Format(PyExc_ValueError, "%zd %s, expected %zu", PyTuple_GET_SIZE(tuple), what, count);
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const long value = PyLong_AsLong(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
    if (value == -1 && PyErr_Occurred()) return false;
    if (value < lowest || value > INT_MAX) {
      PyErr_Format(PyExc_ValueError, "%s: %ld is out of range", what, value);
      return false;
    }
    out[i] = static_cast<Integer>(value);
  }
  return true;
}

// kernel.add(dtypes, attributes, examples, plan): operands of these dtypes are taken from now on.
PyObject* add(PyObject* object, PyObject* arguments) {
  auto& self = *reinterpret_cast<Kernel*>(object);
  PyObject *dtypes, *attributes, *examples;
  Variant variant;
  if (!PyArg_ParseTuple(arguments, "O!O!O!O", &PyTuple_Type, &dtypes, &PyTuple_Type, &attributes,
                        &PyTuple_Type, &examples, &variant.plan)) {
    return nullptr;
  }
  variant.operand_count = static_cast<size_t>(PyTuple_GET_SIZE(dtypes));
  if (variant.operand_count > kMaxOperands) {
    PyErr_Format(PyExc_ValueError, "%zu operands, expected at most %zu", variant.operand_count,
                 kMaxOperands);
    return nullptr;
  }
  if (!read_integers(dtypes, variant.operand_count, "dtypes", kUnwanted, variant.dtypes) ||
      !read_integers(attributes, self.op->attribute_count, "attributes", INT_MIN,
                     variant.attributes) ||
      !read_integers(examples, self.op->result_count, "examples", kUnwanted, variant.examples)) {
    return nullptr;
  }
  for (size_t i = 0; i < self.op->result_count; ++i) {
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
  Py_RETURN_NONE;
}

// Kernel(name, frontend)
PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* name;
  PyObject* frontend;
  const PythonOp* op;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &frontend)) return nullptr;
  Frontend fields;
  if (!read_op(name, &op) || !read_frontend(frontend, &fields)) return nullptr;
  auto* self = reinterpret_cast<Kernel*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = call;
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
    for (const Variant& variant : variants) Py_DECREF(variant.plan);
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

// run(op, operands, results, attributes, threads, allocate) on any DLPack tensors, with no question
// asked. Returns -1, or the position of an operand whose strides the kernels cannot walk; nothing
// has been written then.
PyObject* run(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6 || !PyUnicode_Check(arguments[0]) || !PyTuple_Check(arguments[1]) ||
      !PyTuple_Check(arguments[2]) || !PyTuple_Check(arguments[3])) {
    PyErr_SetString(PyExc_TypeError,
                    "expected run(op, operands, results, attributes, threads, allocate)");
    return nullptr;
  }
  const PythonOp* op;
  int32_t attributes[kMaxAttributes];
  Tensors<kMaxOperands> operands;
  Tensors<kMaxResults> results;
  if (!read_op(PyUnicode_AsUTF8(arguments[0]), &op) || !operands.read(arguments[1]) ||
      !results.read(arguments[2]) ||
      !read_integers(arguments[3], op->attribute_count, "attributes", INT_MIN, attributes)) {
    return nullptr;
  }
  const long threads = PyLong_AsLong(arguments[4]);
  if (threads == -1 && PyErr_Occurred()) return nullptr;
  if (results.size() != op->result_count || operands.size() == 0) {
    PyErr_Format(PyExc_ValueError, "%s: %zu operands and %zu results, expected %zu results",
                 op->name, operands.size(), results.size(), op->result_count);
    return nullptr;
  }
  const int outcome = op->run({operands.operands(), operands.size(), results.operands(), attributes,
                               static_cast<int32_t>(threads), operands.stream(0), arguments[5],
                               PyTuple_GET_ITEM(arguments[1], 0)});
  return outcome == kRaised ? nullptr : PyLong_FromLong(outcome);
}

PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kMethods[] = {
    {"add", add, METH_VARARGS, "add(dtypes, attributes, examples, plan)"},
    {"compute", as_method(compute_method), METH_FASTCALL, "compute(*operands) -> tuple | None"},
    {"write", as_method(write_method), METH_FASTCALL, "write(out, *operands) -> bool"},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef kFunctions[] = {
    {"run", as_method(run), METH_FASTCALL,
     "run(op, operands, results, attributes, threads, allocate) -> int"},
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

int raise_status(bridge_status status, const char* message) {
  if (status == BRIDGE_OUT_OF_MEMORY) {
    PyErr_NoMemory();
  } else {
    PyErr_SetString(status == BRIDGE_INVALID_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                    message);
  }
  return kRaised;
}

bool add_kernel_type(PyObject* module) {
  if (!prepare_frontend()) return false;
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) return false;
  const int status = PyModule_AddObjectRef(module, "Kernel", type);
  Py_DECREF(type);
  return status == 0 && PyModule_AddFunctions(module, kFunctions) == 0;
}

}  // namespace bridge::python
