// The message that bridge_cuda_last_error() returns, one per thread.
#ifndef BRIDGE_CUDA_LAST_ERROR_H_
#define BRIDGE_CUDA_LAST_ERROR_H_

#include <bridge/bridge.h>
#include <stddef.h>

#define BRIDGE_EXPORT __attribute__((visibility("default")))

namespace bridge::cuda {

constexpr size_t kMessageBytes = 512;

// This thread's message buffer: kMessageBytes bytes, including the terminating zero.
char* error_message();

// Writes "operation: what" and returns the status.
bridge_status fail(bridge_status status, const char* operation, const char* what);

// Returns true if the workspace is large enough and aligned; otherwise writes the message.
bool is_enough(const char* operation, const void* workspace, size_t bytes, size_t needed);

}  // namespace bridge::cuda

#endif  // BRIDGE_CUDA_LAST_ERROR_H_
