// What the rest of the CUDA library sees of the interpreter besides the C border.
#ifndef BRIDGE_INTERPRETER_INTERPRETER_CUDA_H_
#define BRIDGE_INTERPRETER_INTERPRETER_CUDA_H_

namespace bridge::interpreter {

// Brings every kernel onto the current device; NULL or what went wrong.
const char* load_kernels();

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_INTERPRETER_CUDA_H_
