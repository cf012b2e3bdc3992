#include "last_error.h"

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

}  // namespace bridge::cuda

extern "C" BRIDGE_EXPORT const char* bridge_cuda_last_error(void) {
  return bridge::cuda::error_message();
}
