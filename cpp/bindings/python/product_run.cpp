#include "bindings/python/product_run.h"

#include <algorithm>
#include <string>

#include "bindings/calls/product_call.h"
#include "bindings/python/openmp.h"
#include "bindings/python/tensors.h"

namespace bridge::bindings {
namespace {

// For fewer multiplications, releasing and retaking the GIL costs more than it gains.
constexpr double kReleaseLockFrom = 1 << 18;

// run_product(a, b, bias, c, threads): writes the product of any DLPack tensors into c.
PyObject* run_product(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "expected run_product(a, b, bias, c, threads)");
    return nullptr;
  }
  Tensors<4> tensors;
  if (!tensors.read(arguments, 4)) return nullptr;
  const long threads = PyLong_AsLong(arguments[4]);
  if (threads == -1 && PyErr_Occurred()) return nullptr;
  const Operand* const operands = tensors.operands();
  bridge_product call;
  CallError error;
  if (!bind_product({operands[0], operands[1], operands[2], operands[3]}, &call, &error)) {
    PyErr_SetString(PyExc_ValueError, ("matmul: " + error.message).c_str());
    return nullptr;
  }
  if (operands[0].device != Device::cpu) {
    PyErr_SetString(PyExc_ValueError, "matmul: a is on a GPU, expected the CPU");
    return nullptr;
  }
  bridge_status status;
  double work =
      static_cast<double>(call.m) * static_cast<double>(call.n) * static_cast<double>(call.k);
  for (int32_t d = 0; d < call.dims; ++d) work *= static_cast<double>(call.size[d]);
  if (work < kReleaseLockFrom) {
    status = bridge_product_cpu(&call, nullptr);
  } else {
    PyThreadState* released = PyEval_SaveThread();
    const bridge_executor executor =
        cpu_executor(static_cast<int32_t>(std::clamp(threads, 1L, 1L << 16)));
    status = bridge_product_cpu(&call, &executor);
    PyEval_RestoreThread(released);
  }
  if (status == BRIDGE_OK) Py_RETURN_NONE;
  if (status == BRIDGE_OUT_OF_MEMORY) return PyErr_NoMemory();
  PyErr_SetString(status == BRIDGE_INVALID_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                  bridge_last_error());
  return nullptr;
}

PyMethodDef kFunctions[] = {
    {"run_product", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_product)),
     METH_FASTCALL, "run_product(a, b, bias, c, threads)"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_run_product(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
