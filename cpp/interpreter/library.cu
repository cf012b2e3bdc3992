// The CUDA library's information about itself, and the loading of all its kernels.
#include <cuda_runtime.h>

#include "convolution/convolution_cuda.h"
#include "cuda/driver.h"
#include "cuda/last_error.h"
#include "cuda/simt.h"
#include "embedding/embedding_cuda.h"
#include "generated/cuda/hand_written.h"
#include "products/product_cuda.h"
#include "program/interpreter_cuda.h"
#include "selection/selection_cuda.h"

namespace {

// Loads every kernel onto the current device, and verifies those written by hand. A captured stream
// cannot record the loading, and CUDA forbids it during a capture (to this thread, or to all
// threads) unless the thread declares that its calls concern no such stream.
const char* load_all(int device) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const char* error = bridge::simt::message_of(cudaThreadExchangeStreamCaptureMode(&mode))) {
    return error;
  }
  const char* error = bridge::interpreter::load_kernels();
  if (error == nullptr) error = bridge::embedding::load_kernels();
  if (error == nullptr) error = bridge::selection::load_kernels();
  if (error == nullptr) error = bridge::interpreter::load_hand_kernels();
  if (error == nullptr) error = bridge::products::load_product_kernels();
  if (error == nullptr) error = bridge::convolution::load_convolution_kernels();
  if (error == nullptr) bridge::interpreter::verify_hand_kernels(device);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return error;
}

}  // namespace

// Returns 0 also without a driver, or with a driver too old for this runtime.
extern "C" BRIDGE_EXPORT int32_t bridge_cuda_device_count(void) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

extern "C" BRIDGE_EXPORT const char* bridge_cuda_archs(void) { return BRIDGE_CUDA_ARCHS; }

extern "C" BRIDGE_EXPORT int32_t bridge_cuda_arch(int32_t device) {
  const char* why = nullptr;
  const bridge::cuda::Driver* driver = bridge::cuda::driver(&why);
  if (driver == nullptr || device < 0 || device >= bridge_cuda_device_count()) return 0;
  return bridge::cuda::arch_of(*driver, device);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_cuda_preload(int32_t device) {
  using namespace bridge::cuda;
  constexpr const char* kName = "preload";
  const char* why = nullptr;
  const Driver* driver = bridge::cuda::driver(&why);
  if (driver == nullptr) return fail(BRIDGE_UNAVAILABLE, kName, why);
  if (device < 0 || device >= bridge_cuda_device_count()) {
    return fail(BRIDGE_UNAVAILABLE, kName, "there is no such device");
  }
  unsigned flags = 0;
  int active = 0;
  int error = driver->primary_ctx_get_state(device, &flags, &active);
  if (error == 0 && active == 0) {
    return fail(BRIDGE_UNAVAILABLE, kName, "nothing uses the device yet");
  }
  int entered = kNoDevice;
  if (error == 0) error = enter(*driver, device, &entered);
  if (error != 0) return fail(BRIDGE_CUDA_ERROR, kName, message_of(*driver, error));
  const char* failure = load_all(device);
  leave(*driver, entered);
  return failure == nullptr ? BRIDGE_OK : fail(BRIDGE_CUDA_ERROR, kName, failure);
}
