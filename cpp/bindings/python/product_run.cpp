#include "bindings/python/product_run.h"

#include <algorithm>
#include <string>

#include "bindings/calls/product_call.h"
#include "bindings/cuda_library.h"
#include "bindings/python/openmp.h"
#include "bindings/python/python_call.h"
#include "bindings/python/tensors.h"
#include "bindings/python/workspace.h"

namespace bridge::bindings {
namespace {

// For fewer multiplications, releasing and retaking the GIL costs more than it gains.
constexpr double kReleaseLockFrom = 1 << 18;

// These return kDone, or kRaised with a Python exception set.
int run_on_cpu(const bridge_product& call, long threads) {
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
  return status == BRIDGE_OK ? kDone : raise_status(status, bridge_last_error());
}

int run_on_cuda(const bridge_product& call, int32_t device, PyObject* allocate, PyObject* like,
                void* stream) {
  std::string why;
  const CudaLibrary* library = cuda_library(&why);
  if (library == nullptr) return raise_status(BRIDGE_UNAVAILABLE, why.c_str());
  if (!is_cuda_prepared(device)) {
    PyThreadState* released = PyEval_SaveThread();
    prepare_cuda(device);
    PyEval_RestoreThread(released);
  }
  const size_t bytes = library->product_workspace(&call);
  Workspace workspace;
  if (bytes > 0 && !workspace.allocate(nullptr, allocate, like, static_cast<int64_t>(bytes)))
    return kRaised;
  const bridge_status status = library->run_product(&call, workspace.data, bytes, stream);
  return status == BRIDGE_OK ? kDone : raise_status(status, library->last_error());
}

constexpr const char* kSignature = "run_product(a, b, bias, c, skips_zeros, threads, allocate)";

// Writes the product of any DLPack tensors into c. `allocate(bytes, like)` makes a workspace.
PyObject* run_product(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7) {
    PyErr_Format(PyExc_TypeError, "expected %s", kSignature);
    return nullptr;
  }
  Tensors<4> tensors;
  if (!tensors.read(arguments, 4)) return nullptr;
  const int skips_zeros = PyObject_IsTrue(arguments[4]);
  const long threads = PyLong_AsLong(arguments[5]);
  if (skips_zeros < 0 || (threads == -1 && PyErr_Occurred())) return nullptr;
  const Operand* const operands = tensors.operands();
  bridge_product call;
  CallError error;
  ProductArguments given{operands[0], operands[1], operands[2], operands[3]};
  given.skips_zeros = skips_zeros != 0;
  if (!bind_product(given, &call, &error)) {
    PyErr_SetString(PyExc_ValueError, ("matmul: " + error.message).c_str());
    return nullptr;
  }
  const int status = operands[0].device == Device::cpu
                         ? run_on_cpu(call, threads)
                         : run_on_cuda(call, operands[0].device_index, arguments[6], arguments[0],
                                       tensors.stream(0));
  if (status == kRaised) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef kFunctions[] = {
    {"run_product", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_product)),
     METH_FASTCALL, kSignature},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_run_product(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
