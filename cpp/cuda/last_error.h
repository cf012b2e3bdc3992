// The message behind bridge_cuda_last_error(), one per thread.
#ifndef BRIDGE_CUDA_LAST_ERROR_H_
#define BRIDGE_CUDA_LAST_ERROR_H_

#include <bridge/bridge.h>
#include <stddef.h>

#define BRIDGE_EXPORT __attribute__((visibility("default")))

namespace bridge::cuda {

constexpr size_t kMessageBytes = 512;

// Holds kMessageBytes, the terminating zero included.
char* error_message();

// Writes "operation: what" and returns the status.
bridge_status fail(bridge_status status, const char* operation, const char* what);

// Whether a call that needs so much workspace can do with this; if not, the message says so.
bool is_enough(const char* operation, const void* workspace, size_t bytes, size_t needed);

}  // namespace bridge::cuda

#endif  // BRIDGE_CUDA_LAST_ERROR_H_
