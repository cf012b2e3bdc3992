#include "bindings/python/handles.h"

#include "bindings/python/kept_tensor.h"
#include "bindings/python/stable_abi.h"

namespace bridge::bindings {
namespace {

TorchTensor* of_torch(Handle handle) { return static_cast<TorchTensor*>(handle); }
PyObject* of_python(Handle handle) { return static_cast<PyObject*>(handle); }

// Returns `torch.Tensor`, the type of ordinary tensors.
PyTypeObject* tensor_type(const Frontend& frontend) {
  return reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(frontend.types, 0));
}

// Allocates a tensor with torch's Python functions, on the device of `first`. Sizes as separate
// arguments cost half as much as in a tuple, which only a tensor without dimensions needs.
PyObject* make_new(const Frontend& frontend, const Operand& output, PyObject* first,
                   PyObject* dtype) {
  PyObject* arguments[kMostDimensions + 2] = {first};
  size_t count = 1;
  bool made_sizes = true;
  if (output.ndim == 0) made_sizes = (arguments[count++] = PyTuple_New(0)) != nullptr;
  for (int32_t d = 0; d < output.ndim; ++d) {
    arguments[count++] = PyLong_FromLongLong(output.shape[d]);
    made_sizes = arguments[count - 1] != nullptr && made_sizes;
  }
  arguments[count] = dtype;
  PyObject* keywords = dtype == nullptr ? nullptr : frontend.dtype_keyword;
  PyObject* tensor = nullptr;
  if (made_sizes) tensor = PyObject_Vectorcall(frontend.new_empty, arguments, count, keywords);
  for (size_t i = 1; i < count; ++i) Py_XDECREF(arguments[i]);
  return tensor;
}

}  // namespace

bool Given::read(PyObject* const* objects, size_t count) {
  if (count > kMaxOperands) return false;
  for (size_t i = 0; i < count; ++i) {
    handles_[i] = objects[i];
    if (table_ == nullptr) continue;
    handles_[i] = objects[i] == Py_None ? nullptr : table_->of(objects[i]);
    if (handles_[i] == nullptr && objects[i] != Py_None) return false;
  }
  return table_ == nullptr ? tensors_.read(objects, count)
                           : tensors_.read(*table_, handles_, count);
}

bool Given::read(TorchTensor* const* tensors, size_t count) {
  if (count > kMaxOperands || table_ == nullptr) return false;
  for (size_t i = 0; i < count; ++i) handles_[i] = tensors[i];
  return tensors_.read(*table_, handles_, count);
}

bool Given::holds_its_values(size_t i) const {
  if (table_ != nullptr) return true;  // FunctionTable::describe() rejects all others
  // Masks are not tested for a negative bit: a nonzero value masks an element with either sign.
  const int32_t dtype = operands()[i].dtype;
  return dtype == BRIDGE_BOOL || dtype == BRIDGE_UINT8 ||
         bindings::holds_its_values(frontend_, of_python(handles_[i]));
}

bool Given::find_stream(void** stream) const {
  const Operand& first = operands()[0];
  *stream = tensors_.stream(0);
  return table_ == nullptr || first.device == Device::cpu ||
         bindings::find_stream(tensor_type(frontend_), first.device_index, stream);
}

Fresh::~Fresh() {
  for (size_t i = 0; i < count_; ++i) {
    if (handles_[i] == nullptr) continue;
    if (given_.table() != nullptr) {
      given_.table()->drop(of_torch(handles_[i]));
    } else {
      Py_DECREF(of_python(handles_[i]));
    }
  }
}

bool Fresh::add(Handle like, bool is_alike, PyObject* dtype, Operand* described) {
  handles_[count_++] = make(like, is_alike, dtype, described);
  return handles_[count_ - 1] != nullptr;
}

Handle Fresh::make(Handle like, bool is_alike, PyObject* dtype, Operand* described) const {
  const Frontend& frontend = given_.frontend();
  const FunctionTable* table = given_.table();
  // A memory profiler sees only torch's own allocations.
  if (is_kept(*described) && !is_profiled(frontend)) {
    PyObject* kept = make_kept(tensor_type(frontend), described);
    if (kept != nullptr) return table != nullptr ? table->take(kept) : Handle{kept};
  }
  if (table != nullptr) {
    return table->make_empty(of_torch(like), described->shape, described->ndim, described->dtype,
                             &described->data);
  }
  PyObject* result = is_alike ? PyObject_CallOneArg(frontend.empty_like, of_python(like))
                              : make_new(frontend, *described, of_python(like), dtype);
  if (result != nullptr && !find_memory(frontend, result, &described->data)) Py_CLEAR(result);
  return result;
}

PyObject* Fresh::as_tuple() {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(count_));
  for (size_t i = 0; tuple != nullptr && i < count_; ++i) {
    const FunctionTable* table = given_.table();
    PyObject* object = Py_None;
    if (handles_[i] == nullptr) {
      Py_INCREF(Py_None);
    } else {
      object = table != nullptr ? table->give(of_torch(handles_[i])) : of_python(handles_[i]);
      handles_[i] = nullptr;
    }
    if (object == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), object);
    }
  }
  return tuple;
}

int Fresh::hand_on(TorchTensor** tensors) {
  for (size_t i = 0; i < count_; ++i) tensors[i] = of_torch(handles_[i]);
  const auto count = static_cast<int>(count_);
  count_ = 0;
  return count;
}

}  // namespace bridge::bindings
