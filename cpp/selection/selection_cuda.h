// The loading of the kernels that choose columns, for the CUDA library.
#ifndef BRIDGE_SELECTION_SELECTION_CUDA_H_
#define BRIDGE_SELECTION_SELECTION_CUDA_H_

namespace bridge::selection {

// Loads every kernel onto the current device; returns NULL or an error message.
const char* load_kernels();

}  // namespace bridge::selection

#endif  // BRIDGE_SELECTION_SELECTION_CUDA_H_
