#include "cuda/last_error.h"

#include <stdio.h>

namespace bridge::cuda {
namespace {
thread_local char t_message[kMessageBytes] = "";
}

char* error_message() { return t_message; }

bridge_status fail(bridge_status status, const char* operation, const char* what) {
  snprintf(t_message, kMessageBytes, "%s: %s", operation, what);
  return status;
}

bool is_enough(const char* operation, const void* workspace, size_t bytes, size_t needed) {
  if (needed == 0 || (workspace != nullptr && bytes >= needed &&
                      reinterpret_cast<uintptr_t>(workspace) % 16 == 0)) {
    return true;
  }
  snprintf(t_message, kMessageBytes,
           "%s: workspace is %zu bytes at %p, expected %zu bytes at a multiple of 16", operation,
           bytes, workspace, needed);
  return false;
}

}  // namespace bridge::cuda

extern "C" BRIDGE_EXPORT const char* bridge_cuda_last_error(void) {
  return bridge::cuda::error_message();
}
