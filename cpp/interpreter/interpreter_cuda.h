// What the rest of the CUDA library sees of the interpreter besides the C border.
#ifndef BRIDGE_INTERPRETER_INTERPRETER_CUDA_H_
#define BRIDGE_INTERPRETER_INTERPRETER_CUDA_H_

#include <bridge/bridge.h>
#include <stddef.h>

namespace bridge::interpreter {

struct GeneratedKernels;

// Enqueues a call on the current device, whose stream it is: by these kernels, or NULL: by the
// interpreter. The message is bridge_cuda_last_error()'s. Throws std::bad_alloc.
bridge_status run_program(const bridge_program& call, void* workspace, size_t workspace_bytes,
                          void* stream, const GeneratedKernels* kernels);

// Brings every kernel onto the current device; NULL or what went wrong.
const char* load_kernels();

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_INTERPRETER_CUDA_H_
