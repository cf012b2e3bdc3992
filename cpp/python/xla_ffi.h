// The XLA FFI handlers: addresses for jax.ffi.register_ffi_target.
#ifndef BRIDGE_PYTHON_XLA_FFI_H_
#define BRIDGE_PYTHON_XLA_FFI_H_

namespace bridge::python {

struct FfiHandler {
  const char* target;    // the name under which JAX calls it
  const char* platform;  // "cpu" or "CUDA"
  void* address;
};

// Ends with an entry whose target is nullptr.
extern const FfiHandler kFfiHandlers[];

int ffi_api_major();
int ffi_api_minor();

}  // namespace bridge::python

#endif  // BRIDGE_PYTHON_XLA_FFI_H_
