// The choice of columns on CUDA: checks a call and enqueues its kernel.
#include <algorithm>

#include "cuda/last_error.h"
#include "selection/selection.cuh"
#include "selection/selection_cuda.h"

namespace bridge::selection {
namespace {

constexpr const char* kName = "selection";
constexpr int kLongWarps = 8;
constexpr int64_t kShortCols = 1024;  // the most for one warp

struct Kernels {
  const char* (*run[2])(simt::Grid, size_t, void*, const bridge_selection&);
  const char* (*load[2])();
};

template <class T>
constexpr Kernels kernels_of() {
  return {{simt::launch<SelectionKernel<T, 1>>, simt::launch<SelectionKernel<T, kLongWarps>>},
          {simt::load<SelectionKernel<T, 1>>, simt::load<SelectionKernel<T, kLongWarps>>}};
}

// By bridge_dtype.
constexpr Kernels kKernels[] = {kernels_of<math::float16>(), kernels_of<math::bfloat16>(),
                                kernels_of<float>(), kernels_of<double>()};

bridge_status run(const bridge_selection& call, void* stream) {
  if (const char* wrong = wrong_with(call))
    return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, wrong);
  if (call.rows == 0 || call.count == 0) return BRIDGE_OK;
  simt::Grid grid;
  grid.x = std::min(call.rows, simt::kMaxGridX);
  int entered = -1;
  if (const char* error = simt::make_current(call.result, &entered))
    return cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
  const char* error =
      kKernels[call.dtype].run[call.cols <= kShortCols ? 0 : 1](grid, 0, stream, call);
  simt::restore_current(entered);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}

}  // namespace

const char* load_kernels() {
  for (const Kernels& kernels : kKernels)
    for (const auto load : kernels.load)
      if (const char* error = load()) return error;
  return nullptr;
}

}  // namespace bridge::selection

extern "C" BRIDGE_EXPORT bridge_status bridge_selection_cuda(const bridge_selection* call,
                                                             void* stream) {
  if (call == nullptr)
    return bridge::cuda::fail(BRIDGE_INVALID_ARGUMENT, "selection", "the call is NULL");
  return bridge::selection::run(*call, stream);
}
