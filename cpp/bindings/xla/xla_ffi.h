// The XLA FFI handlers: addresses for jax.ffi.register_ffi_target.
#ifndef BRIDGE_BINDINGS_XLA_XLA_FFI_H_
#define BRIDGE_BINDINGS_XLA_XLA_FFI_H_

namespace bridge::bindings {

// Handlers of the custom call that runs a program.
constexpr const char* kFfiTarget = "bridge_program";
void* ffi_cpu();
void* ffi_cuda();

// The handlers of matrix products.
constexpr const char* kProductTarget = "bridge_matmul";
void* ffi_product_cpu();
void* ffi_product_cuda();

// The handlers of gradients of embeddings.
constexpr const char* kEmbeddingTarget = "bridge_embedding_gradient";
void* ffi_embedding_cpu();
void* ffi_embedding_cuda();

// The handlers of the choice of columns.
constexpr const char* kSelectionTarget = "bridge_selection";
void* ffi_selection_cpu();
void* ffi_selection_cuda();

// The handlers of convolutions and their gradients.
constexpr const char* kConvolutionTarget = "bridge_convolution";
void* ffi_convolution_cpu();
void* ffi_convolution_cuda();

// The handler of maps between places, on the CPU alone.
constexpr const char* kTapsTarget = "bridge_taps";
void* ffi_taps_cpu();

// A handler that takes any buffers and attributes and does nothing. The cost of its calls is XLA's
// own part of every call; `bench` measures it.
void* empty_handler();

// The handler of that custom call for the stage "instantiate" on CUDA.
void* ffi_cuda_instantiate();

int ffi_api_major();
int ffi_api_minor();

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_XLA_XLA_FFI_H_
