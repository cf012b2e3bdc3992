#include "bindings/python/embedding_run.h"

#include <algorithm>
#include <string>

#include "bindings/calls/embedding_call.h"
#include "bindings/cuda_library.h"
#include "bindings/python/openmp.h"
#include "bindings/python/tensors.h"

namespace bridge::bindings {
namespace {

// For fewer elements, releasing and retaking the GIL costs more than it gains.
constexpr int64_t kReleaseLockFrom = 1 << 14;

PyObject* outcome(bridge_status status, const char* message) {
  if (status == BRIDGE_OK) Py_RETURN_NONE;
  if (status == BRIDGE_OUT_OF_MEMORY) return PyErr_NoMemory();
  PyErr_SetString(status == BRIDGE_INVALID_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                  message);
  return nullptr;
}

// Calls run() without the GIL.
template <class Run>
bridge_status unlocked(const Run& run) {
  PyThreadState* released = PyEval_SaveThread();
  const bridge_status status = run();
  PyEval_RestoreThread(released);
  return status;
}

PyObject* run_on_cuda(const bridge_embedding_gradient& call, const Operand& workspace,
                      int32_t device, void* stream) {
  std::string why;
  const CudaLibrary* library = cuda_library(&why);
  if (library == nullptr) return outcome(BRIDGE_UNAVAILABLE, why.c_str());
  if (!is_cuda_prepared(device)) {
    unlocked([&] {
      prepare_cuda(device);
      return BRIDGE_OK;
    });
  }
  const auto bytes = workspace.present ? static_cast<size_t>(elements_of(workspace)) : 0;
  return outcome(library->embedding(&call, workspace.data, bytes, stream), library->last_error());
}

// run_embedding_gradient(terms, ids, order, result, workspace, threads): writes the sums of any
// DLPack tensors into the result. Order and workspace, of bytes, are None on the CPU.
PyObject* run_embedding_gradient(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6) {
    PyErr_SetString(
        PyExc_TypeError,
        "expected run_embedding_gradient(terms, ids, order, result, workspace, threads)");
    return nullptr;
  }
  Tensors<5> tensors;
  if (!tensors.read(arguments, 5)) return nullptr;
  const long threads = PyLong_AsLong(arguments[5]);
  if (threads == -1 && PyErr_Occurred()) return nullptr;
  const Operand* const operands = tensors.operands();
  bridge_embedding_gradient call;
  CallError error;
  if (!bind_embedding({operands[0], operands[1], operands[2], operands[3]}, &call, &error)) {
    PyErr_SetString(PyExc_ValueError, ("embedding: " + error.message).c_str());
    return nullptr;
  }
  if (operands[0].device == Device::cuda)
    return run_on_cuda(call, operands[4], operands[0].device_index, tensors.stream(0));
  const auto run = [&] {
    const bridge_executor executor =
        cpu_executor(static_cast<int32_t>(std::clamp(threads, 1L, 1L << 16)));
    return bridge_embedding_gradient_cpu(&call, &executor);
  };
  const bool is_small = elements_of(operands[0]) + elements_of(operands[3]) < kReleaseLockFrom;
  return outcome(is_small ? bridge_embedding_gradient_cpu(&call, nullptr) : unlocked(run),
                 bridge_last_error());
}

PyMethodDef kFunctions[] = {
    {"run_embedding_gradient",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_embedding_gradient)),
     METH_FASTCALL, "run_embedding_gradient(terms, ids, order, result, workspace, threads)"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_run_embedding(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
