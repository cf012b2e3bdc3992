// The functions of FunctionTable (function_table.h), compiled against one version of torch.
#ifndef BRIDGE_BINDINGS_TORCH_FUNCTIONS_H_
#define BRIDGE_BINDINGS_TORCH_FUNCTIONS_H_

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <utility>

#include "bindings/torch/function_table.h"

namespace bridge::bindings::libtorch {

inline TorchTensor* borrowed(const at::Tensor& tensor) {
  return reinterpret_cast<TorchTensor*>(tensor.unsafeGetTensorImpl());
}

inline TorchTensor* owned(at::Tensor tensor) {
  return reinterpret_cast<TorchTensor*>(tensor.unsafeReleaseTensorImpl());
}

inline c10::TensorImpl& of_torch(TorchTensor* tensor) {
  return *reinterpret_cast<c10::TensorImpl*>(tensor);
}

// Returns a tensor that takes the reference; an undefined one for nullptr.
inline at::Tensor taken(TorchTensor* owned) {
  if (owned == nullptr) return {};
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim(&of_torch(owned)));
}

inline TorchTensor* of(PyObject* object) {
  return THPVariable_Check(object) ? borrowed(THPVariable_Unpack(object)) : nullptr;
}

inline TorchTensor* take(PyObject* object) {
  TorchTensor* tensor = owned(THPVariable_Unpack(object));
  Py_DECREF(object);
  return tensor;
}

inline PyObject* give(TorchTensor* owned) {
  try {
    return THPVariable_Wrap(taken(owned));
  } catch (const std::exception& error) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

inline void drop(TorchTensor* owned) { taken(owned); }

// Torch's types, by bridge_dtype.
constexpr at::ScalarType kTypes[] = {
    at::kHalf,   at::kBFloat16,      at::kFloat,       at::kDouble,        at::kBool, at::kByte,
    at::kLong,   at::kUInt32,        at::kChar,        at::kShort,         at::kInt,  at::kUInt16,
    at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu};

inline int32_t dtype_code(at::ScalarType type) {
  const auto* found = std::find(std::begin(kTypes), std::end(kTypes), type);
  return found == std::end(kTypes) ? kNoDtype : static_cast<int32_t>(found - kTypes);
}

inline bool describe(TorchTensor* tensor, Operand* operand) {
  try {
    c10::TensorImpl& own = of_torch(tensor);
    const c10::Device device = own.device();
    if (own.is_neg() || !(device.is_cpu() || device.is_cuda())) return false;
    operand->data = own.mutable_data();
    if (operand->data == nullptr && own.numel() > 0) return false;  // zeros that autograd has made
    operand->present = true;
    operand->dtype = dtype_code(own.dtype().toScalarType());
    operand->ndim = static_cast<int32_t>(own.dim());
    operand->shape = own.sizes().data();
    operand->strides = own.strides().data();
    operand->device = device.is_cpu() ? Device::cpu : Device::cuda;
    operand->device_index = device.is_cpu() ? 0 : device.index();
    return true;
  } catch (const std::exception&) {  // it has no memory, or no strides
    return false;
  }
}

inline TorchTensor* make_empty(TorchTensor* like, const int64_t* sizes, int32_t ndim, int32_t dtype,
                               void** address) {
  try {
    const c10::TensorImpl& own = of_torch(like);
    const at::IntArrayRef shape(sizes, static_cast<size_t>(ndim));
    at::Tensor made;
    if (own.is_cpu()) {
      made = at::detail::empty_cpu(shape, kTypes[dtype]);
    } else {  // its allocator may wait for a device
      const pybind11::gil_scoped_release released;
      made = at::empty(shape, at::TensorOptions(own.device()).dtype(kTypes[dtype]));
    }
    *address = made.mutable_data_ptr();
    return owned(std::move(made));
  } catch (const std::exception&) {
    return nullptr;
  }
}

inline bool is_observed(bool* grad) {
  *grad = c10::GradMode::is_enabled();
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         included.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode) ||
         torch::jit::tracer::isTracing();
}

inline bool requires_grad(TorchTensor* tensor) { return of_torch(tensor).requires_grad(); }

inline bool is_overridden(TorchTensor* tensor) {
  return of_torch(tensor).key_set().has(c10::DispatchKey::Python);
}

}  // namespace bridge::bindings::libtorch

#endif  // BRIDGE_BINDINGS_TORCH_FUNCTIONS_H_
