// What the CUDA library says of itself, and the loading of all its kernels.
#include <cuda_runtime.h>

#include "last_error.h"
#include "ops/bias_dropout_add_cuda.h"
#include "ops/bias_gelu_cuda.h"
#include "ops/softmax_cuda.h"

namespace {

using LoadKernels = const char* (*)();

// One line per op.
constexpr LoadKernels kOps[] = {
    bridge::bias_dropout_add::load_kernels,
    bridge::bias_gelu::load_kernels,
    bridge::softmax::load_kernels,
    bridge::softmax_derivative::load_kernels,
};

}  // namespace

// No driver, a driver too old for this runtime and no device all count as none.
extern "C" BRIDGE_EXPORT int32_t bridge_cuda_device_count(void) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

extern "C" BRIDGE_EXPORT const char* bridge_cuda_archs(void) { return BRIDGE_CUDA_ARCHS; }

extern "C" BRIDGE_EXPORT bridge_status bridge_cuda_preload(void) {
  if (bridge_cuda_device_count() == 0) {
    return bridge::cuda::fail(BRIDGE_UNAVAILABLE, "preload", "no CUDA device answers");
  }
  for (LoadKernels load : kOps) {
    if (const char* error = load()) return bridge::cuda::fail(BRIDGE_CUDA_ERROR, "preload", error);
  }
  return BRIDGE_OK;
}
