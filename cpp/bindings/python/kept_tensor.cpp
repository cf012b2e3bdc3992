#include "bindings/python/kept_tensor.h"

#include <new>

#include "bindings/python/dlpack_exchange.h"
#include "bindings/python/stable_abi.h"
#include "cpu/kept_memory.h"

namespace bridge::bindings {
namespace {

// A tensor in reused memory. Its consumer holds it until nothing reads the memory any more.
struct KeptTensor {
  DLManagedTensorVersioned managed;
  int64_t bytes;
  int64_t sizes[2 * kMostDimensions];  // shape, then strides
};

void drop(DLManagedTensorVersioned* managed) {
  auto* tensor = static_cast<KeptTensor*>(managed->manager_ctx);
  leave_memory(managed->dl_tensor.data, tensor->bytes);
  delete tensor;
}

// Returns the bytes of a compact tensor; 0 if its memory is not to be reused.
int64_t bytes_to_keep(const Operand& described) {
  if (described.device != Device::cpu || !is_floating(described.dtype) ||
      described.ndim > kMostDimensions) {
    return 0;
  }
  int64_t bytes = element_bytes(described.dtype);
  for (int32_t d = 0; d < described.ndim; ++d) {
    if (__builtin_mul_overflow(bytes, described.shape[d], &bytes)) return 0;
  }
  return bytes >= kLeastLargeBytes ? bytes : 0;
}

DLDataType dlpack_dtype(int32_t dtype) {
  const auto code = static_cast<uint8_t>(dtype == BRIDGE_BFLOAT16 ? kDLBfloat : kDLFloat);
  return {code, static_cast<uint8_t>(8 * element_bytes(dtype)), 1};
}

}  // namespace

bool is_kept(const Operand& described) { return bytes_to_keep(described) > 0; }

PyObject* make_kept(PyTypeObject* type, Operand* described) {
  const int64_t bytes = bytes_to_keep(*described);
  const DLPackExchangeAPI* table = bytes > 0 ? exchange_table(type) : nullptr;
  if (table == nullptr || table->managed_tensor_to_py_object_no_sync == nullptr) return nullptr;
  void* const memory = take_memory(bytes);
  if (memory == nullptr) return nullptr;
  auto* tensor = new (std::nothrow) KeptTensor;
  if (tensor == nullptr) {
    leave_memory(memory, bytes);
    return nullptr;
  }
  tensor->bytes = bytes;
  int64_t* const strides = tensor->sizes + described->ndim;
  int64_t stride = 1;
  for (int32_t d = described->ndim - 1; d >= 0; --d) {
    tensor->sizes[d] = described->shape[d];
    strides[d] = stride;
    stride *= described->shape[d];
  }
  tensor->managed = {{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, tensor, drop, 0, {}};
  tensor->managed.dl_tensor = {
      memory, {kDLCPU, 0}, described->ndim, dlpack_dtype(described->dtype), tensor->sizes, strides,
      0};
  void* result = nullptr;
  if (table->managed_tensor_to_py_object_no_sync(&tensor->managed, &result) != 0) {
    PyErr_Clear();  // a failed consumer may have dropped the memory: it is not touched again
    return nullptr;
  }
  described->data = memory;
  return static_cast<PyObject*>(result);
}

namespace {

PyObject* kept_empty(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || !PyTuple_Check(arguments[2])) {
    PyErr_SetString(PyExc_TypeError, "expected kept_empty(like, dtype_code, shape)");
    return nullptr;
  }
  Operand described;
  described.dtype = static_cast<int32_t>(PyLong_AsLong(arguments[1]));
  int64_t shape[kMostDimensions];
  described.shape = shape;
  const Py_ssize_t ndim = PyTuple_GET_SIZE(arguments[2]);
  if (ndim > kMostDimensions) Py_RETURN_NONE;
  described.ndim = static_cast<int32_t>(ndim);
  for (Py_ssize_t d = 0; d < ndim; ++d) {
    shape[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(arguments[2], d));
  }
  if (PyErr_Occurred()) return nullptr;
  PyObject* result = make_kept(Py_TYPE(arguments[0]), &described);
  return result != nullptr ? result : Py_NewRef(Py_None);
}

PyObject* keep_memory_function(PyObject*, PyObject* bytes) {
  const int64_t limit = PyLong_AsLongLong(bytes);
  if (limit == -1 && PyErr_Occurred() != nullptr) return nullptr;
  keep_memory(limit);
  Py_RETURN_NONE;
}

PyObject* kept_memory_function(PyObject*, PyObject*) { return PyLong_FromLongLong(kept_memory()); }

PyMethodDef kFunctions[] = {
    {"kept_empty", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kept_empty)),
     METH_FASTCALL, "kept_empty(like, dtype_code, shape) -> tensor or None"},
    {"keep_memory", keep_memory_function, METH_O, "keep_memory(bytes)"},
    {"kept_memory", kept_memory_function, METH_NOARGS, "kept_memory() -> bytes"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_kept_memory(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
