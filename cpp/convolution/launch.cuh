// A kernel of convolutions as the host sees it.
#ifndef BRIDGE_CONVOLUTION_LAUNCH_CUH_
#define BRIDGE_CONVOLUTION_LAUNCH_CUH_

#include "convolution/tile.cuh"
#include "products/launch.cuh"

namespace bridge::convolution {

using Kernel = products::KernelWith<ConvolutionParams>;

inline int64_t tiles_of(const ConvolutionParams& params, const Kernel& kernel, int64_t groups) {
  const Problem& problem = params.problem;
  return groups * ((problem.row_count + kernel.rows - 1) / kernel.rows) *
         ((problem.col_count + kernel.cols - 1) / kernel.cols);
}

// Returns the kernel for a product on tensor cores (tensor_convolution.cu).
const Kernel& tensor_kernel_for(const ConvolutionParams& params, int64_t groups);
const char* load_tensor_kernels();

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_LAUNCH_CUH_
