#include "bindings/python/array_calls.h"

#include <algorithm>

#include "bindings/calls/convolution_call.h"
#include "bindings/calls/embedding_call.h"
#include "bindings/calls/product_call.h"
#include "bindings/calls/selection_call.h"
#include "bindings/calls/taps_call.h"
#include "bindings/python/openmp.h"
#include "bindings/python/python_call.h"
#include "bindings/python/tensors.h"

namespace bridge::bindings {
namespace {

// For fewer elements, releasing and retaking the GIL costs more than it gains.
constexpr double kEmbeddingReleasesFrom = 1 << 14, kSelectionReleasesFrom = 1 << 14,
                 kTapsReleasesFrom = 1 << 14;

PyObject* outcome(bridge_status status, const char* message) {
  if (status == BRIDGE_OK) Py_RETURN_NONE;
  raise_status(status, message);
  return nullptr;
}

PyObject* refuse(const char* op, const CallError& error) {
  PyErr_Format(PyExc_ValueError, "%s: %s", op, error.message.c_str());
  return nullptr;
}

// Returns run(workspace), with device memory of the tensor's device, or null if no byte is needed.
template <class Run>
PyObject* with_workspace(size_t bytes, PyObject* allocate, PyObject* like, const Run& run) {
  Workspace workspace;
  if (bytes > 0 && !workspace.allocate(nullptr, allocate, like, static_cast<int64_t>(bytes)))
    return nullptr;
  return run(workspace.data);
}

PyObject* run_product_on_cuda(const bridge_product& call, const Tensors<4>& tensors,
                              PyObject* allocate, PyObject* like) {
  const CudaLibrary* library = prepared_library(tensors.operands()[0].device_index);
  if (library == nullptr) return nullptr;
  const size_t bytes = library->product_workspace(&call);
  return with_workspace(bytes, allocate, like, [&](void* workspace) {
    return outcome(library->run_product(&call, workspace, bytes, tensors.stream(0)),
                   library->last_error());
  });
}

constexpr const char* kProduct =
    "run_product(a, b, bias, c, skips_zeros, tensor_cores, threads, allocate)";

// Writes the product of any DLPack tensors into c. `allocate(bytes, like)` makes a workspace.
PyObject* run_product(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 8) return PyErr_Format(PyExc_TypeError, "expected %s", kProduct);
  Tensors<4> tensors;
  if (!tensors.read(arguments, 4)) return nullptr;
  const int skips_zeros = PyObject_IsTrue(arguments[4]);
  const int tensor_cores = PyObject_IsTrue(arguments[5]);
  const long threads = PyLong_AsLong(arguments[6]);
  if (skips_zeros < 0 || tensor_cores < 0 || (threads == -1 && PyErr_Occurred())) return nullptr;
  const Operand* const operands = tensors.operands();
  bridge_product call;
  CallError error;
  ProductArguments given{operands[0], operands[1], operands[2], operands[3]};
  given.skips_zeros = skips_zeros != 0;
  given.has_tensor_cores = tensor_cores != 0;
  if (!bind_product(given, &call, &error)) return refuse("matmul", error);
  if (operands[0].device == Device::cuda)
    return run_product_on_cuda(call, tensors, arguments[7], arguments[0]);
  double work =
      static_cast<double>(call.m) * static_cast<double>(call.n) * static_cast<double>(call.k);
  for (int32_t d = 0; d < call.dims; ++d) work *= static_cast<double>(call.size[d]);
  return outcome(on_threads(work >= kProductReleasesFrom, threads,
                            [&](const bridge_executor* executor) {
                              return bridge_product_cpu(&call, executor);
                            }),
                 bridge_last_error());
}

constexpr const char* kEmbedding =
    "run_embedding_gradient(terms, ids, order, result, workspace, threads)";

// Writes the sums of any DLPack tensors into the result. Order and workspace, of bytes, are None on
// the CPU.
PyObject* run_embedding_gradient(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6) return PyErr_Format(PyExc_TypeError, "expected %s", kEmbedding);
  Tensors<5> tensors;
  if (!tensors.read(arguments, 5)) return nullptr;
  const long threads = PyLong_AsLong(arguments[5]);
  if (threads == -1 && PyErr_Occurred()) return nullptr;
  const Operand* const operands = tensors.operands();
  bridge_embedding_gradient call;
  CallError error;
  if (!bind_embedding({operands[0], operands[1], operands[2], operands[3]}, &call, &error))
    return refuse("embedding", error);
  if (operands[0].device == Device::cuda) {
    const CudaLibrary* library = prepared_library(operands[0].device_index);
    if (library == nullptr) return nullptr;
    const Operand& workspace = operands[4];
    const auto bytes = workspace.present ? static_cast<size_t>(elements_of(workspace)) : 0;
    return outcome(library->embedding(&call, workspace.data, bytes, tensors.stream(0)),
                   library->last_error());
  }
  const auto work = static_cast<double>(elements_of(operands[0]) + elements_of(operands[3]));
  return outcome(on_threads(work >= kEmbeddingReleasesFrom, threads,
                            [&](const bridge_executor* executor) {
                              return bridge_embedding_gradient_cpu(&call, executor);
                            }),
                 bridge_last_error());
}

constexpr const char* kSelection =
    "run_selection(x, words, result, temperature, top_k, top_p, min_p, threads)";

// Writes columns of the rows of any DLPack tensor into the result. The words are None, or uint32 or
// int64.
PyObject* run_selection(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 8) return PyErr_Format(PyExc_TypeError, "expected %s", kSelection);
  Tensors<3> tensors;
  if (!tensors.read(arguments, 3)) return nullptr;
  const double temperature = PyFloat_AsDouble(arguments[3]);
  const long long top_k = PyLong_AsLongLong(arguments[4]);
  const double top_p = PyFloat_AsDouble(arguments[5]), min_p = PyFloat_AsDouble(arguments[6]);
  const long threads = PyLong_AsLong(arguments[7]);
  if (PyErr_Occurred()) return nullptr;
  const Operand* const operands = tensors.operands();
  bridge_selection call;
  CallError error;
  if (!bind_selection({operands[0], operands[1], operands[2]}, {temperature, top_p, min_p, top_k},
                      &call, &error))
    return refuse("selection", error);
  if (operands[0].device == Device::cuda) {
    const CudaLibrary* library = prepared_library(operands[0].device_index);
    if (library == nullptr) return nullptr;
    return outcome(library->selection(&call, tensors.stream(0)), library->last_error());
  }
  const auto work = static_cast<double>(elements_of(operands[0]));
  return outcome(on_threads(work >= kSelectionReleasesFrom, threads,
                            [&](const bridge_executor* executor) {
                              return bridge_selection_cpu(&call, executor);
                            }),
                 bridge_last_error());
}

// Up to three numbers from a sequence of Python.
struct ReadNumbers {
  int64_t values[BRIDGE_CONVOLUTION_DIMS] = {};
  size_t count = 0;

  bool read(PyObject* sequence) {
    const Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) return false;
    if (size > BRIDGE_CONVOLUTION_DIMS) {
      PyErr_Format(PyExc_ValueError, "convolution: %zd spatial dimensions, expected 1 to %d", size,
                   static_cast<int>(BRIDGE_CONVOLUTION_DIMS));
      return false;
    }
    for (; count < static_cast<size_t>(size); ++count) {
      PyObject* const item = PySequence_GetItem(sequence, static_cast<Py_ssize_t>(count));
      if (item == nullptr) return false;
      values[count] = PyLong_AsLongLong(item);
      Py_DECREF(item);
      if (values[count] == -1 && PyErr_Occurred()) return false;
    }
    return true;
  }
  Numbers numbers() const { return {values, count}; }
};

constexpr const char* kConvolution =
    "run_convolution(kind, x, w, bias, y, stride, padding, dilation, groups, tensor_cores, "
    "threads, "
    "allocate)";

// Writes y (kind 0), x (1) or w (2) of any DLPack tensors. `allocate(bytes, like)` makes a
// workspace.
PyObject* run_convolution(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 12) return PyErr_Format(PyExc_TypeError, "expected %s", kConvolution);
  Tensors<4> tensors;
  if (!tensors.read(arguments + 1, 4)) return nullptr;
  ReadNumbers stride, padding, dilation;
  if (!stride.read(arguments[5]) || !padding.read(arguments[6]) || !dilation.read(arguments[7]))
    return nullptr;
  const long kind = PyLong_AsLong(arguments[0]);
  const long long groups = PyLong_AsLongLong(arguments[8]);
  const int tensor_cores = PyObject_IsTrue(arguments[9]);
  const long threads = PyLong_AsLong(arguments[10]);
  if (PyErr_Occurred()) return nullptr;
  const Operand* const operands = tensors.operands();
  ConvolutionArguments given;
  given.x = operands[0], given.w = operands[1], given.bias = operands[2], given.y = operands[3];
  given.kind = static_cast<int32_t>(std::clamp(kind, -1L, 3L));
  given.stride = stride.numbers();
  given.padding = padding.numbers();
  given.dilation = dilation.numbers();
  given.groups = groups;
  given.has_tensor_cores = tensor_cores != 0;
  bridge_convolution call;
  CallError error;
  if (!bind_convolution(given, &call, &error)) return refuse("convolution", error);
  if (operands[0].device == Device::cuda) {
    const CudaLibrary* library = prepared_library(operands[0].device_index);
    if (library == nullptr) return nullptr;
    const size_t bytes = library->convolution_workspace(&call);
    return with_workspace(bytes, arguments[11], arguments[1], [&](void* workspace) {
      return outcome(library->run_convolution(&call, workspace, bytes, tensors.stream(0)),
                     library->last_error());
    });
  }
  double work = static_cast<double>(elements_of(operands[1]));
  for (int32_t d = 0; d < BRIDGE_CONVOLUTION_DIMS; ++d) work *= static_cast<double>(call.out[d]);
  return outcome(
      on_threads(
          work * static_cast<double>(call.images) >= kProductReleasesFrom, threads,
          [&](const bridge_executor* executor) { return bridge_convolution_cpu(&call, executor); }),
      bridge_last_error());
}

constexpr const char* kTaps =
    "run_taps(kind, x, table, weights, chosen, result, has_inner, threads)";

// Writes a map between places of tensors on the CPU into the result, as bridge/taps.h says.
PyObject* run_taps(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 8) return PyErr_Format(PyExc_TypeError, "expected %s", kTaps);
  Tensors<5> tensors;
  if (!tensors.read(arguments + 1, 5)) return nullptr;
  const long kind = PyLong_AsLong(arguments[0]);
  const int has_inner = PyObject_IsTrue(arguments[6]);
  const long threads = PyLong_AsLong(arguments[7]);
  if (PyErr_Occurred()) return nullptr;
  const Operand* const operands = tensors.operands();
  TapsArguments given{operands[0], operands[1], operands[2], operands[3], operands[4]};
  given.kind = static_cast<int32_t>(std::clamp(kind, -1L, 7L));
  given.has_inner = has_inner != 0;
  bridge_taps call;
  CallError error;
  if (operands[0].device == Device::cuda) error.set("x is on cuda, expected the CPU");
  if (!error.message.empty() || !bind_taps(given, &call, &error)) return refuse("taps", error);
  const auto work = static_cast<double>(elements_of(operands[0]) + elements_of(operands[4]));
  return outcome(
      on_threads(work >= kTapsReleasesFrom, threads,
                 [&](const bridge_executor* executor) { return bridge_taps_cpu(&call, executor); }),
      bridge_last_error());
}

template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kFunctions[] = {
    {"run_product", as_method(run_product), METH_FASTCALL, kProduct},
    {"run_embedding_gradient", as_method(run_embedding_gradient), METH_FASTCALL, kEmbedding},
    {"run_selection", as_method(run_selection), METH_FASTCALL, kSelection},
    {"run_convolution", as_method(run_convolution), METH_FASTCALL, kConvolution},
    {"run_taps", as_method(run_taps), METH_FASTCALL, kTaps},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_array_calls(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
