// The interpreter's interface to the rest of the CUDA library, beside the C API.
#ifndef BRIDGE_PROGRAM_INTERPRETER_CUDA_H_
#define BRIDGE_PROGRAM_INTERPRETER_CUDA_H_

#include <bridge/bridge.h>
#include <stddef.h>

namespace bridge::interpreter {

struct GeneratedKernels;

// Enqueues a call on a stream of the current device: by these kernels, or by the interpreter if
// NULL. bridge_cuda_last_error() has the message. Throws std::bad_alloc.
bridge_status run_program(const bridge_program& call, void* workspace, size_t workspace_bytes,
                          void* stream, const GeneratedKernels* kernels);

// Loads every kernel onto the current device; returns NULL or an error message.
const char* load_kernels();

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_INTERPRETER_CUDA_H_
