#include "bindings/python/dlpack_exchange.h"

#include "bindings/python/stable_abi.h"

namespace bridge::bindings {
namespace {

int32_t dtype_of(const DLDataType& dtype) {
  if (dtype.lanes != 1) return kNoDtype;
  if (dtype.code == kDLFloat && dtype.bits == 16) return BRIDGE_FLOAT16;
  if (dtype.code == kDLBfloat && dtype.bits == 16) return BRIDGE_BFLOAT16;
  if (dtype.code == kDLFloat && dtype.bits == 32) return BRIDGE_FLOAT32;
  if (dtype.code == kDLFloat && dtype.bits == 64) return BRIDGE_FLOAT64;
  if (dtype.code == kDLBool && dtype.bits == 8) return BRIDGE_BOOL;
  if (dtype.code == kDLFloat8_e4m3fn) return BRIDGE_FLOAT8_E4M3FN;
  if (dtype.code == kDLFloat8_e5m2) return BRIDGE_FLOAT8_E5M2;
  if (dtype.code == kDLFloat8_e8m0fnu) return BRIDGE_FLOAT8_E8M0FNU;
  const bool is_signed = dtype.code == kDLInt;
  if (!is_signed && dtype.code != kDLUInt) return kNoDtype;
  switch (dtype.bits) {
    case 8:
      return is_signed ? BRIDGE_INT8 : BRIDGE_UINT8;
    case 16:
      return is_signed ? BRIDGE_INT16 : BRIDGE_UINT16;
    case 32:
      return is_signed ? BRIDGE_INT32 : BRIDGE_UINT32;
    case 64:
      return is_signed ? BRIDGE_INT64 : BRIDGE_UINT64;
    default:
      return kNoDtype;
  }
}

bool describe(const DLTensor& tensor, Operand* operand) {
  switch (tensor.device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      operand->device = Device::cpu;
      operand->device_index = 0;
      break;
    case kDLCUDA:
    case kDLCUDAManaged:
      operand->device = Device::cuda;
      operand->device_index = tensor.device.device_id;
      break;
    default:
      PyErr_Format(PyExc_ValueError, "DLPack device type %d is not supported, expected CPU or CUDA",
                   static_cast<int>(tensor.device.device_type));
      return false;
  }
  operand->present = true;
  operand->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  operand->dtype = dtype_of(tensor.dtype);
  operand->ndim = tensor.ndim;
  operand->shape = tensor.shape;
  operand->strides = tensor.strides;
  if (tensor.data == nullptr && !is_empty(*operand)) {  // such as torch's efficient zero tensors
    PyErr_SetString(PyExc_ValueError, "a tensor has elements, but no memory");
    return false;
  }
  return true;
}

// Finds torch's current stream through Python, if no exchange table has it.
bool torch_stream(int32_t device_index, void** stream) {
  PyObject* torch = PyImport_ImportModule("torch._C");
  if (torch == nullptr) return false;
  PyObject* address = PyObject_CallMethod(torch, "_cuda_getCurrentRawStream", "i", device_index);
  Py_DECREF(torch);
  if (address == nullptr) return false;
  *stream = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return PyErr_Occurred() == nullptr;
}

}  // namespace

// Looks a table up once for each type. The few tensor types of a process live as long as the
// process, so these references leak nothing that would be freed.
const DLPackExchangeAPI* exchange_table(PyTypeObject* type) {
  struct Entry {
    PyTypeObject* type;
    const DLPackExchangeAPI* table;
  };
  static Entry cache[16];
  static int used = 0;
  for (int i = 0; i < used; ++i) {
    if (cache[i].type == type) return cache[i].table;
  }
  const DLPackExchangeAPI* table = nullptr;
  PyObject* capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
  } else {
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
      auto* header = static_cast<DLPackExchangeAPIHeader*>(
          PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
      while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION) {
        header = header->prev_api;
      }
      table = reinterpret_cast<const DLPackExchangeAPI*>(header);
      if (table != nullptr && table->dltensor_from_py_object_no_sync == nullptr) table = nullptr;
    }
    Py_DECREF(capsule);
  }
  if (used < 16) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    cache[used++] = {type, table};
  }
  return table;
}

bool find_stream(PyTypeObject* type, int32_t device_index, void** stream) {
  const DLPackExchangeAPI* table = exchange_table(type);
  if (table == nullptr || table->current_work_stream == nullptr) {
    return torch_stream(device_index, stream);
  }
  return table->current_work_stream(kDLCUDA, device_index, stream) == 0;
}

Borrowed::~Borrowed() { Py_XDECREF(capsule_); }

bool Borrowed::read(PyObject* object, Operand* operand) {
  if (object == Py_None) return true;
  const DLPackExchangeAPI* table = exchange_table(Py_TYPE(object));
  return table != nullptr ? read_by_table(object, table, operand) : read_by_method(object, operand);
}

bool Borrowed::read_by_table(PyObject* object, const DLPackExchangeAPI* table, Operand* operand) {
  DLTensor view;
  if (table->dltensor_from_py_object_no_sync(object, &view) != 0) return false;
  return describe_with_stream(view, Py_TYPE(object), operand);
}

bool Borrowed::read_by_method(PyObject* object, Operand* operand) {
  PyObject* method = PyObject_GetAttrString(object, "__dlpack__");
  if (method == nullptr) {
    raise_unexpected("a tensor with __dlpack__", object);
    return false;
  }
  // A versioned capsule tells if the memory may be written. Older producers do not know the
  // keyword.
  PyObject* keywords = Py_BuildValue("{s:(ii)}", "max_version", DLPACK_MAJOR_VERSION, 0);
  PyObject* arguments = PyTuple_New(0);
  capsule_ = PyObject_Call(method, arguments, keywords);
  if (capsule_ == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    capsule_ = PyObject_Call(method, arguments, nullptr);
  }
  Py_DECREF(arguments);
  Py_DECREF(keywords);
  Py_DECREF(method);
  if (capsule_ == nullptr) return false;
  // The capsule stays unconsumed: its own destructor releases the memory when it is dropped.
  if (PyCapsule_IsValid(capsule_, "dltensor_versioned")) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule_, "dltensor_versioned"));
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
      PyErr_Format(PyExc_BufferError, "DLPack version %u is not supported, expected %d",
                   managed->version.major, DLPACK_MAJOR_VERSION);
      return false;
    }
    operand->read_only = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    return describe_with_stream(managed->dl_tensor, Py_TYPE(object), operand);
  }
  if (PyCapsule_IsValid(capsule_, "dltensor")) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule_, "dltensor"));
    return describe_with_stream(managed->dl_tensor, Py_TYPE(object), operand);
  }
  raise_unexpected("a DLPack capsule from __dlpack__()", capsule_);
  return false;
}

bool Borrowed::describe_with_stream(const DLTensor& tensor, PyTypeObject* type, Operand* operand) {
  if (!describe(tensor, operand)) return false;
  return operand->device == Device::cpu || find_stream(type, operand->device_index, &stream);
}

}  // namespace bridge::bindings
