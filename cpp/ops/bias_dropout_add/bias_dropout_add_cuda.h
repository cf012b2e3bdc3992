// What the rest of the CUDA library sees of bias_dropout_add besides the C border.
#ifndef BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_CUDA_H_
#define BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_CUDA_H_

namespace bridge::bias_dropout_add {

// Brings every kernel onto the current device; NULL or what went wrong.
const char* load_kernels();

}  // namespace bridge::bias_dropout_add

#endif  // BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_CUDA_H_
