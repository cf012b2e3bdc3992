// What the rest of the CUDA library sees of bias_gelu besides the C border.
#ifndef BRIDGE_OPS_BIAS_GELU_BIAS_GELU_CUDA_H_
#define BRIDGE_OPS_BIAS_GELU_BIAS_GELU_CUDA_H_

namespace bridge::bias_gelu {

// Brings every kernel onto the current device; NULL or what went wrong.
const char* load_kernels();

}  // namespace bridge::bias_gelu

#endif  // BRIDGE_OPS_BIAS_GELU_BIAS_GELU_CUDA_H_
