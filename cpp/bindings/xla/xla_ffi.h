// The XLA FFI handlers: addresses for jax.ffi.register_ffi_target.
#ifndef BRIDGE_BINDINGS_XLA_XLA_FFI_H_
#define BRIDGE_BINDINGS_XLA_XLA_FFI_H_

#include <array>

#include "bindings/calls/op.h"

namespace bridge::bindings {

// Handlers of one op. JAX calls them under the name "bridge_<op>".
struct FfiHandlers {
  const Op* op;
  void* cpu;
  void* cuda;
};

const std::array<FfiHandlers, kOpCount>& ffi_handlers();

// A handler that takes any buffers and attributes and does nothing. The cost of its calls is XLA's
// own part of every call; `bench` measures it.
void* empty_handler();

// The handler of every op for the stage "instantiate" on CUDA.
void* ffi_cuda_instantiate();

int ffi_api_major();
int ffi_api_minor();

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_XLA_XLA_FFI_H_
