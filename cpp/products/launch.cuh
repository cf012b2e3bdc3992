// A kernel of products as the host sees it.
#ifndef BRIDGE_PRODUCTS_LAUNCH_CUH_
#define BRIDGE_PRODUCTS_LAUNCH_CUH_

#include "products/product.cuh"

namespace bridge::products {

template <class Params>
struct KernelWith {
  int64_t rows, cols, bytes;  // of a tile; bytes: of its elements
  const char* (*launch)(simt::Grid, size_t, void*, const Params&);
  const char* (*load)();
};
using Kernel = KernelWith<TileParams>;

template <class Kernel_>
constexpr KernelWith<typename Kernel_::Params> kernel_of() {
  constexpr int64_t kRows = Kernel_::kTileRows, kCols = Kernel_::kTileCols;
  return {kRows, kCols, kRows * kCols * static_cast<int64_t>(sizeof(typename Kernel_::Real)),
          simt::launch<Kernel_>, simt::load<Kernel_>};
}

inline int64_t tiles_of(const bridge_product& call, const Kernel& kernel) {
  return batches_of(call) * ((call.m + kernel.rows - 1) / kernel.rows) *
         ((call.n + kernel.cols - 1) / kernel.cols);
}

// Returns true if the operand can be read in runs of 16 bytes, of adjacent lanes if lane_stride is
// 1, else of adjacent terms. `lanes` are its rows or columns beside the terms.
inline bool has_vectors(const bridge_product& call, const bridge_product_array& array,
                        int64_t bytes, int64_t lanes, int64_t lane_stride, int64_t term_stride) {
  const int64_t run = 16 / bytes;
  if (element_bytes(array.dtype) != bytes || reinterpret_cast<uintptr_t>(array.data) % 16 != 0)
    return false;
  for (int32_t d = 0; d < call.dims; ++d)
    if (array.stride[d] % run != 0) return false;
  return lane_stride == 1 ? lanes % run == 0 && term_stride % run == 0
                          : term_stride == 1 && call.k % run == 0 && lane_stride % run == 0;
}

// Returns the kernel for a call on tensor cores (tensor_product.cu).
const Kernel& tensor_kernel_for(const bridge_product& call);
const char* load_tensor_kernels();

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_LAUNCH_CUH_
