// bias_gelu as Python calls it, and the table of all ops.
#include <algorithm>
#include <new>
#include <string>

#include "bias_gelu_call.h"
#include "cuda_library.h"
#include "dlpack_exchange.h"
#include "python_op.h"

namespace bridge::python {
namespace {

// Below this many elements giving up and taking back the interpreter lock costs more than it frees.
constexpr int64_t kReleaseLockFrom = 1 << 14;

int run_on_cuda(const bridge_bias_gelu& bound, const PythonCall& call) {
  std::string why;
  const CudaLibrary* library = cuda_library(&why);
  if (library == nullptr) return raise_status(BRIDGE_UNAVAILABLE, why.c_str());
  const size_t bytes = library->bias_gelu_workspace(&bound);
  PyObject* held = nullptr;
  Borrowed scratch;
  Operand workspace;
  if (bytes > 0) {
    held = PyObject_CallFunction(call.allocate, "nO", static_cast<Py_ssize_t>(bytes), call.like);
    if (held == nullptr) return kRaised;
    if (!scratch.read(held, &workspace)) {
      Py_DECREF(held);
      return kRaised;
    }
  }
  const bridge_status status = library->bias_gelu(&bound, workspace.data, bytes, call.stream);
  Py_XDECREF(held);  // memory of the stream's own allocator: reused only after the kernel
  return status == BRIDGE_OK ? kDone : raise_status(status, library->last_error());
}

int run_on_cpu(const bridge_bias_gelu& bound, const PythonCall& call) {
  bridge_status status;
  if (bound.batch * bound.rows * bound.cols < kReleaseLockFrom) {
    status = bridge_bias_gelu_cpu(&bound, nullptr);
  } else {
    PyThreadState* released = PyEval_SaveThread();
    const bridge_executor executor = bridge_pool(std::max(call.threads, 1));
    status = bridge_bias_gelu_cpu(&bound, &executor);
    PyEval_RestoreThread(released);
  }
  return status == BRIDGE_OK ? kDone : raise_status(status, bridge_last_error());
}

int run_bias_gelu(const PythonCall& call) {
  try {
    bridge_bias_gelu bound;
    const CallError error =
        bind_bias_gelu(call.operands, call.operand_count, call.results, call.attributes[0],
                       call.attributes[1], call.attributes[2], &bound);
    if (error.unreadable >= 0) return error.unreadable;
    if (error) {
      return raise_status(BRIDGE_INVALID_ARGUMENT, ("bias_gelu: " + error.message).c_str());
    }
    return call.operands[0].device == Device::cuda ? run_on_cuda(bound, call)
                                                   : run_on_cpu(bound, call);
  } catch (const std::bad_alloc&) {
    return raise_status(BRIDGE_OUT_OF_MEMORY, "");
  }
}

}  // namespace

const PythonOp kPythonOps[] = {
    {"bias_gelu", 2, 3, run_bias_gelu},  // results full, row; attributes form, order, batch_ndim
    {nullptr, 0, 0, nullptr},
};

}  // namespace bridge::python
