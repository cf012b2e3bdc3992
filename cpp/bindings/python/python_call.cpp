#include "bindings/python/python_call.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "bindings/cuda_library.h"
#include "bindings/python/openmp.h"
#include "bindings/python/stable_abi.h"
#include "bindings/python/tensors.h"
#include "bindings/python/workspace.h"
#include "program/interpreter.h"

namespace bridge::bindings {

int raise_status(bridge_status status, const char* message) {
  if (status == BRIDGE_OUT_OF_MEMORY) {
    PyErr_NoMemory();
  } else {
    PyErr_SetString(status == BRIDGE_INVALID_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                    message);
  }
  return kRaised;
}

namespace {

// For fewer elements, releasing and retaking the GIL costs more than it gains.
constexpr int64_t kReleaseLockFrom = 1 << 14;

int run_on_cuda(const BoundProgram& bound, const PythonCall& call) {
  std::string why;
  const CudaLibrary* library = cuda_library(&why);
  if (library == nullptr) return raise_status(BRIDGE_UNAVAILABLE, why.c_str());
  const int32_t device = call.arguments.operands[0].device_index;
  if (!is_cuda_prepared(device)) {
    PyThreadState* released = PyEval_SaveThread();
    prepare_cuda(device);
    PyEval_RestoreThread(released);
  }
  const size_t bytes = library->workspace(&bound);
  Workspace workspace;
  if (bytes > 0 &&
      !workspace.allocate(call.table, call.allocate, call.like, static_cast<int64_t>(bytes)))
    return kRaised;
  const bridge_status status = library->run(&bound, workspace.data, bytes, call.stream);
  return status == BRIDGE_OK ? kDone : raise_status(status, library->last_error());
}

int run_on_cpu(const BoundProgram& bound, const PythonCall& call) {
  bridge_status status;
  if (elements_of(bound) < kReleaseLockFrom) {
    status = interpreter::run_on_cpu(bound, bound.known, nullptr);
  } else {
    PyThreadState* released = PyEval_SaveThread();
    const bridge_executor executor = cpu_executor(std::max(call.threads, 1));
    status = interpreter::run_on_cpu(bound, bound.known, &executor);
    PyEval_RestoreThread(released);
  }
  return status == BRIDGE_OK ? kDone : raise_status(status, bridge_last_error());
}

// run(op, operands, results, attributes, threads, allocate, code): runs a program on any DLPack
// tensors, without a test for observers. Returns -1, or the position of an operand with strides
// that the kernels do not support; then nothing has been written.
PyObject* run_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7 || !PyUnicode_Check(arguments[0]) || !PyTuple_Check(arguments[1]) ||
      !PyTuple_Check(arguments[2]) || !PyTuple_Check(arguments[3]) ||
      !PyBytes_Check(arguments[6])) {
    PyErr_SetString(PyExc_TypeError,
                    "expected run(op, operands, results, attributes, threads, allocate, code)");
    return nullptr;
  }
  double attributes[kAttributes];
  Tensors<kMaxOperands> operands;
  Tensors<kMaxResults> results;
  Code code;
  if (!require_op(PyUnicode_AsUTF8(arguments[0])) || !operands.read(arguments[1]) ||
      !results.read(arguments[2]) || !read_attributes(arguments[3], attributes) ||
      !read_code(arguments[6], &code)) {
    return nullptr;
  }
  const long threads = PyLong_AsLong(arguments[4]);
  if (threads == -1 && PyErr_Occurred()) return nullptr;
  const int outcome = run({{operands.operands(), operands.size(), results.operands(),
                            results.size(), attributes, kAttributes, code},
                           static_cast<int32_t>(std::clamp(threads, 1L, 1L << 16)),
                           operands.stream(0),
                           arguments[5],
                           operands.size() > 0 ? PyTuple_GET_ITEM(arguments[1], 0) : Py_None});
  return outcome == kRaised ? nullptr : PyLong_FromLong(outcome);
}

PyMethodDef kFunctions[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_function)),
     METH_FASTCALL, "run(op, operands, results, attributes, threads, allocate, code) -> int"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int run(const PythonCall& call) {
  try {
    BoundProgram bound;
    CallError error;
    if (!bind(call.arguments, &bound, &error)) {
      if (error.unreadable >= 0) return error.unreadable;
      return raise_status(BRIDGE_INVALID_ARGUMENT,
                          (std::string(kProgramName) + ": " + error.message).c_str());
    }
    return call.arguments.operands[0].device == Device::cuda ? run_on_cuda(bound, call)
                                                             : run_on_cpu(bound, call);
  } catch (const std::bad_alloc&) {
    return raise_status(BRIDGE_OUT_OF_MEMORY, "");
  }
}

bool read_attributes(PyObject* tuple, double (&attributes)[kAttributes]) {
  if (static_cast<size_t>(PyTuple_GET_SIZE(tuple)) != kAttributes) {
    PyErr_Format(PyExc_ValueError, "%s: %zd attributes, expected %zu", kProgramName,
                 PyTuple_GET_SIZE(tuple), kAttributes);
    return false;
  }
  for (size_t i = 0; i < kAttributes; ++i) {
    attributes[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
    if (attributes[i] == -1.0 && PyErr_Occurred()) return false;
  }
  return true;
}

bool read_code(PyObject* bytes, Code* code) {
  constexpr auto kWordBytes = static_cast<Py_ssize_t>(sizeof(int32_t));
  const Py_ssize_t size = PyBytes_GET_SIZE(bytes);
  if (size % kWordBytes != 0) {
    PyErr_Format(PyExc_ValueError,
                 "%s: its bytecode cannot be read: %zd bytes, expected 4 for each", kProgramName,
                 size);
    return false;
  }
  *code = {reinterpret_cast<const int32_t*>(PyBytes_AS_STRING(bytes)), size / kWordBytes};
  return true;
}

bool require_op(const char* name) {
  if (name == nullptr) return false;
  if (std::strcmp(name, kProgramName) == 0) return true;
  PyErr_Format(PyExc_ValueError, "no op is named '%s'", name);
  return false;
}

bool add_run(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
