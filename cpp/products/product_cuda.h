// The kernels of matrix products on CUDA, for the library that contains them.
#ifndef BRIDGE_PRODUCTS_PRODUCT_CUDA_H_
#define BRIDGE_PRODUCTS_PRODUCT_CUDA_H_

namespace bridge::products {

// Loads all kernels onto the current device. Returns nullptr, or the reason that one failed.
const char* load_product_kernels();

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_PRODUCT_CUDA_H_
