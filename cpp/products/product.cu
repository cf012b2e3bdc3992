// Matrix products on CUDA: checks a call, chooses a kernel and enqueues it.
#include "products/product.cuh"

#include <algorithm>

#include "cuda/last_error.h"
#include "products/launch.cuh"
#include "products/product_cuda.h"

namespace bridge::products {
namespace {

constexpr const char* kName = "matmul";
constexpr int64_t kMostBlocks = 2 * simt::kMultiprocessors;

// The largest tile first; a tile of few rows last.
template <class Real, bool kVectors>
struct Kernels {
  static constexpr int kMost = sizeof(Real) == 8 ? 4 : 8;
  static constexpr Kernel all[] = {kernel_of<TileKernel<Real, kMost, kMost, kVectors>>(),
                                   kernel_of<TileKernel<Real, kMost / 2, kMost / 2, kVectors>>(),
                                   kernel_of<TileKernel<Real, 1, 4, kVectors>>()};
};
constexpr const Kernel* kKernels[2][2] = {
    {Kernels<float, false>::all, Kernels<float, true>::all},
    {Kernels<double, false>::all, Kernels<double, true>::all}};
constexpr int kSizes = 3;

const Kernel* kernels_for(const bridge_product& call) {
  const int64_t bytes = is_double(call) ? 8 : 4;
  const bool are_vectors =
      has_vectors(call, call.a, bytes, call.m, call.a.row_stride, call.a.col_stride) &&
      has_vectors(call, call.b, bytes, call.n, call.b.col_stride, call.b.row_stride);
  return kKernels[is_double(call)][are_vectors];
}

const Kernel& kernel_for(const bridge_product& call) {
  if (call.tensor_cores != 0) return tensor_kernel_for(call);
  const Kernel* const kernels = kernels_for(call);
  if (call.m <= kernels[kSizes - 1].rows) return kernels[kSizes - 1];
  return tiles_of(call, kernels[0]) > simt::kMultiprocessors ? kernels[0] : kernels[1];
}

size_t bytes_of_block(const bridge_product& call, const Kernel& kernel) {
  return static_cast<size_t>(waiting_levels(call.k) * kernel.bytes);
}

bridge_status enqueue(const bridge_product& call, void* workspace, size_t workspace_bytes,
                      void* stream) {
  const Kernel& kernel = kernel_for(call);
  TileParams params{};
  params.call = call;
  params.row_tiles = (call.m + kernel.rows - 1) / kernel.rows;
  params.col_tiles = (call.n + kernel.cols - 1) / kernel.cols;
  params.tiles = tiles_of(call, kernel);
  params.levels = waiting_levels(call.k);
  params.waiting = workspace;
  const size_t block = bytes_of_block(call, kernel);
  if (!cuda::is_enough(kName, workspace, workspace_bytes, block)) return BRIDGE_INVALID_ARGUMENT;
  simt::Grid grid;
  grid.x = std::min(params.tiles, kMostBlocks);
  if (block > 0) grid.x = std::min(grid.x, static_cast<int64_t>(workspace_bytes / block));
  const char* const error = kernel.launch(grid, 0, stream, params);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}

bool has_elements(const bridge_product& call) {
  return batches_of(call) > 0 && call.m > 0 && call.n > 0;
}

}  // namespace

const char* load_product_kernels() {
  for (const auto& of_type : kKernels)
    for (const Kernel* kernels : of_type)
      for (int i = 0; i < kSizes; ++i)
        if (const char* error = kernels[i].load()) return error;
  return load_tensor_kernels();
}

}  // namespace bridge::products

extern "C" BRIDGE_EXPORT size_t bridge_product_cuda_workspace(const bridge_product* call) {
  using namespace bridge::products;  // NOLINT
  if (call == nullptr || wrong_with(*call) != nullptr || !has_elements(*call)) return 0;
  const Kernel& kernel = kernel_for(*call);
  const auto blocks = static_cast<size_t>(std::min(tiles_of(*call, kernel), kMostBlocks));
  return blocks * bytes_of_block(*call, kernel);
}

extern "C" BRIDGE_EXPORT size_t bridge_product_cuda_least_workspace(const bridge_product* call) {
  using namespace bridge::products;  // NOLINT
  if (call == nullptr || wrong_with(*call) != nullptr || !has_elements(*call)) return 0;
  return bytes_of_block(*call, kernel_for(*call));
}

extern "C" BRIDGE_EXPORT bridge_status bridge_product_cuda(const bridge_product* call,
                                                           void* workspace, size_t workspace_bytes,
                                                           void* stream) {
  using namespace bridge;            // NOLINT
  using namespace bridge::products;  // NOLINT
  if (call == nullptr) return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, "the call is null");
  if (const char* wrong = wrong_with(*call))
    return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, wrong);
  if (!has_elements(*call)) return BRIDGE_OK;
  int entered = -1;
  if (const char* error = simt::make_current(call->c.data, &entered))
    return cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
  const bridge_status status = enqueue(*call, workspace, workspace_bytes, stream);
  simt::restore_current(entered);
  return status;
}
