// Gradients of embeddings on CUDA: checks a call and enqueues its kernels.
#include "embedding/embedding.cuh"

#include <algorithm>

#include "cuda/last_error.h"
#include "drivers/dtypes.h"
#include "embedding/embedding_cuda.h"

namespace bridge::embedding {
namespace {

constexpr const char* kName = "embedding";

struct Kernels {
  const char* (*add_chunks)(simt::Grid, size_t, void*, const SumsParams&);
  const char* (*add_tree)(simt::Grid, size_t, void*, const SumsParams&);
  const char* (*load_chunks)();
  const char* (*load_tree)();
};

template <class T>
constexpr Kernels kernels_of() {
  return {simt::launch<ChunksKernel<T>>, simt::launch<ChunkTreeKernel<T>>,
          simt::load<ChunksKernel<T>>, simt::load<ChunkTreeKernel<T>>};
}

// By bridge_dtype.
constexpr Kernels kKernels[] = {kernels_of<math::float16>(), kernels_of<math::bfloat16>(),
                                kernels_of<float>(), kernels_of<double>()};

simt::Grid grid_for(int64_t parts, int64_t each) {
  simt::Grid grid;
  grid.x = std::min((parts + each - 1) / each, simt::kMaxGridX);
  return grid;
}

const char* enqueue(const SumsParams& params, int32_t dtype, void* stream) {
  const Kernels& kernels = kKernels[dtype];
  const auto parts_of = [&](int64_t items) {
    return params.batches * items * ((params.cols + kWarpCols - 1) / kWarpCols);
  };
  const simt::Grid starts = grid_for(params.batches * (params.rows + 1), kThreads);
  if (const char* error = simt::launch<StartsKernel>(starts, 0, stream, params)) return error;
  const simt::Grid chunks = grid_for(parts_of(params.rows + 2 * params.windows), kWarps);
  if (const char* error = kernels.add_chunks(chunks, 0, stream, params)) return error;
  if (params.count <= kChunkRows) return nullptr;
  return kernels.add_tree(grid_for(parts_of(params.windows), kWarps), 0, stream, params);
}

bridge_status run(const bridge_embedding_gradient& call, void* workspace, size_t workspace_bytes,
                  void* stream) {
  const auto refuse = [](const char* what) {
    return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, what);
  };
  if (call.batches < 0 || call.count < 0 || call.rows < 0 || call.cols < 0)
    return refuse("a negative size");
  if (!is_floating(call.dtype)) return refuse("a dtype that is not floating");
  if (call.index_dtype != BRIDGE_INT32 && call.index_dtype != BRIDGE_INT64)
    return refuse("indices that are neither int32 nor int64");
  if (call.count > kMostPositions) return refuse("too many positions");
  if (call.batches == 0 || call.rows == 0 || call.cols == 0) return BRIDGE_OK;
  const int64_t windows = (call.count + kChunkRows - 1) / kChunkRows;
  const int64_t starts = (call.batches * (call.rows + 1) * 8 + 15) / 16 * 16;
  const int64_t chunks =
      call.batches * 2 * windows * call.cols * (call.dtype == BRIDGE_FLOAT64 ? 8 : 4);
  if (!cuda::is_enough(kName, workspace, workspace_bytes, static_cast<size_t>(starts + chunks)))
    return BRIDGE_INVALID_ARGUMENT;
  int entered = -1;
  if (const char* error = simt::make_current(call.result, &entered))
    return cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
  const char* error =
      enqueue({call.batches, call.count, call.rows, call.cols, windows, call.index_dtype, call.ids,
               call.order, call.terms, call.result, static_cast<int64_t*>(workspace),
               static_cast<char*>(workspace) + starts},
              call.dtype, stream);
  simt::restore_current(entered);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}

}  // namespace

const char* load_kernels() {
  for (const Kernels& kernels : kKernels)
    for (const auto load : {kernels.load_chunks, kernels.load_tree})
      if (const char* error = load()) return error;
  return simt::load<StartsKernel>();
}

}  // namespace bridge::embedding

extern "C" BRIDGE_EXPORT bridge_status bridge_embedding_gradient_cuda(
    const bridge_embedding_gradient* call, void* workspace, size_t workspace_bytes, void* stream) {
  if (call == nullptr)
    return bridge::cuda::fail(BRIDGE_INVALID_ARGUMENT, "embedding", "the call is NULL");
  return bridge::embedding::run(*call, workspace, workspace_bytes, stream);
}
