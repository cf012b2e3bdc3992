// Softmax and its Jacobian on CUDA, kernels written by hand for the programs of
// bridge/catalogue/softmax_programs.py.
#ifndef BRIDGE_HAND_WRITTEN_SOFTMAX_CUDA_H_
#define BRIDGE_HAND_WRITTEN_SOFTMAX_CUDA_H_

#include "generated/cuda/hand_written.h"

namespace bridge {

extern const interpreter::HandKernel softmax_kernel;
extern const interpreter::HandKernel jacobian_kernel;

}  // namespace bridge

#endif  // BRIDGE_HAND_WRITTEN_SOFTMAX_CUDA_H_
