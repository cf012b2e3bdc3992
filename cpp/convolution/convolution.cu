// Convolutions on CUDA: checks a call, makes products of it and enqueues a kernel for each class of
// places.
#include <algorithm>

#include "convolution/convolution_cuda.h"
#include "convolution/launch.cuh"
#include "convolution/problem.h"
#include "cuda/last_error.h"

namespace bridge::convolution {
namespace {

constexpr const char* kName = "convolution";
constexpr int64_t kMostBlocks = 2 * simt::kMultiprocessors;

// Tiles of 64 x 64 elements.
constexpr Kernel kFloat = products::kernel_of<ConvolutionKernel<float, 4, 4>>();
constexpr Kernel kDouble = products::kernel_of<ConvolutionKernel<double, 4, 4>>();

GroupSteps steps_of(const bridge_convolution& call) {
  const int64_t x = call.in_channels / call.groups * call.x.channel_stride;
  const int64_t y = call.out_channels / call.groups * call.y.channel_stride;
  const int64_t w = call.out_channels / call.groups * call.w.batch_stride;
  if (call.kind == BRIDGE_CONVOLUTION_WEIGHT) return {x, y, w, 0};
  const bool is_forward = call.kind == BRIDGE_CONVOLUTION_FORWARD;
  const int64_t channels = is_forward ? call.out_channels : call.in_channels;
  const int64_t bias = channels / call.groups * call.bias.channel_stride;
  return is_forward ? GroupSteps{x, w, y, bias} : GroupSteps{y, w, x, bias};
}

// The launch of a class of places, without its workspace.
struct Launch {
  ConvolutionParams params;
  const Kernel* kernel;
  size_t block_bytes;  // of the workspace
};

Launch launch_of(const bridge_convolution& call, int64_t number) {
  Launch all{};
  ConvolutionParams& params = all.params;
  params.problem = problem_of(call, number, 0);
  params.steps = steps_of(call);
  all.kernel = call.tensor_cores != 0     ? &tensor_kernel_for(params, call.groups)
               : params.problem.is_double ? &kDouble
                                          : &kFloat;
  const Kernel& kernel = *all.kernel;
  params.tile.row_tiles = (params.problem.row_count + kernel.rows - 1) / kernel.rows;
  params.tile.col_tiles = (params.problem.col_count + kernel.cols - 1) / kernel.cols;
  params.tile.tiles = tiles_of(params, kernel, call.groups);
  params.tile.levels = products::waiting_levels(params.problem.term_count);
  all.block_bytes = static_cast<size_t>(params.tile.levels * kernel.bytes);
  return all;
}

// Returns the largest workspace that a class needs: of one block, or of as many as have tiles.
size_t most_bytes(const bridge_convolution* call, bool is_least) {
  if (call == nullptr || wrong_with(*call) != nullptr) return 0;
  size_t most = 0;
  const int64_t classes = classes_of(*call);
  for (int64_t number = 0; number < classes; ++number) {
    const Launch launch = launch_of(*call, number);
    const int64_t tiles = std::min(launch.params.tile.tiles, kMostBlocks);
    const auto blocks = static_cast<size_t>(is_least ? std::min<int64_t>(tiles, 1) : tiles);
    most = std::max(most, blocks * launch.block_bytes);
  }
  return most;
}

bridge_status enqueue(const bridge_convolution& call, int64_t number, void* workspace,
                      size_t workspace_bytes, void* stream) {
  Launch launch = launch_of(call, number);
  launch.params.tile.waiting = workspace;
  if (launch.params.tile.tiles == 0) return BRIDGE_OK;
  const size_t block = launch.block_bytes;
  if (!cuda::is_enough(kName, workspace, workspace_bytes, block)) return BRIDGE_INVALID_ARGUMENT;
  simt::Grid grid;
  grid.x = std::min(launch.params.tile.tiles, kMostBlocks);
  if (block > 0) grid.x = std::min(grid.x, static_cast<int64_t>(workspace_bytes / block));
  const char* const error = launch.kernel->launch(grid, 0, stream, launch.params);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}

}  // namespace

const char* load_convolution_kernels() {
  for (const Kernel* kernel : {&kFloat, &kDouble})
    if (const char* error = kernel->load()) return error;
  return load_tensor_kernels();
}

}  // namespace bridge::convolution

extern "C" BRIDGE_EXPORT size_t bridge_convolution_cuda_workspace(const bridge_convolution* call) {
  return bridge::convolution::most_bytes(call, false);
}

extern "C" BRIDGE_EXPORT size_t
bridge_convolution_cuda_least_workspace(const bridge_convolution* call) {
  return bridge::convolution::most_bytes(call, true);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_convolution_cuda(const bridge_convolution* call,
                                                               void* workspace,
                                                               size_t workspace_bytes,
                                                               void* stream) {
  using namespace bridge;               // NOLINT
  using namespace bridge::convolution;  // NOLINT
  if (call == nullptr) return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, "the call is null");
  if (const char* wrong = wrong_with(*call))
    return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, wrong);
  int entered = -1;
  if (const char* error = simt::make_current(result_of(*call).data, &entered))
    return cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
  bridge_status status = BRIDGE_OK;
  const int64_t classes = classes_of(*call);
  for (int64_t number = 0; number < classes && status == BRIDGE_OK; ++number)
    status = enqueue(*call, number, workspace, workspace_bytes, stream);
  simt::restore_current(entered);
  return status;
}
