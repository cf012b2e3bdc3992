// What the rest of the CUDA library sees of softmax and its derivative besides the C border.
#ifndef BRIDGE_OPS_SOFTMAX_SOFTMAX_CUDA_H_
#define BRIDGE_OPS_SOFTMAX_SOFTMAX_CUDA_H_

namespace bridge::softmax {

// Brings every kernel onto the current device; NULL or what went wrong.
const char* load_kernels();

}  // namespace bridge::softmax

namespace bridge::softmax_derivative {

const char* load_kernels();

}  // namespace bridge::softmax_derivative

#endif  // BRIDGE_OPS_SOFTMAX_SOFTMAX_CUDA_H_
