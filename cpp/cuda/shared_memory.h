// Sizes of the shared memory of a block, in bytes.
#ifndef BRIDGE_CUDA_SHARED_MEMORY_H_
#define BRIDGE_CUDA_SHARED_MEMORY_H_

#include <stddef.h>

namespace bridge::cuda {

constexpr size_t kSharedBytes = size_t{48} << 10;      // every GPU gives it
constexpr size_t kMostSharedBytes = size_t{96} << 10;  // on request, from sm_80 on

}  // namespace bridge::cuda

#endif  // BRIDGE_CUDA_SHARED_MEMORY_H_
