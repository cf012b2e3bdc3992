// The kernels of convolutions on CUDA, for the library that contains them.
#ifndef BRIDGE_CONVOLUTION_CONVOLUTION_CUDA_H_
#define BRIDGE_CONVOLUTION_CONVOLUTION_CUDA_H_

namespace bridge::convolution {

// Loads all kernels onto the current device. Returns nullptr, or the reason that one failed.
const char* load_convolution_kernels();

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_CONVOLUTION_CUDA_H_
