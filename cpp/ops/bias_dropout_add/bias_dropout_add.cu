// bias_dropout_add on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include <bridge/bridge.h>

#include "cuda/op_entry.h"
#include "ops/bias_dropout_add/bias_dropout_add_cuda.h"
#include "ops/bias_dropout_add/bias_dropout_add_operands.cuh"
#include "walks/columns/column_plan.h"

namespace bridge::bias_dropout_add {
namespace {

using Kernel = columns::Kernel<Params>;

using columns::ChunkKernel;
using columns::ElementwiseKernel;
using columns::make_kernel;

// The hot calls of one dtype: forward pass without and with a residual, backward pass with column
// sums; each without and with drawing.
struct HotKernels {
  Kernel with[3][2];
};

template <class T>
constexpr HotKernels hot_kernels() {
  return {{{make_kernel<ElementwiseKernel, HotOperands<T, Keep::all, With::nothing>>(),
            make_kernel<ElementwiseKernel, HotOperands<T, Keep::some, With::nothing>>()},
           {make_kernel<ElementwiseKernel, HotOperands<T, Keep::all, With::residual>>(),
            make_kernel<ElementwiseKernel, HotOperands<T, Keep::some, With::residual>>()},
           {make_kernel<ChunkKernel, HotOperands<T, Keep::all, With::sums>>(),
            make_kernel<ChunkKernel, HotOperands<T, Keep::some, With::sums>>()}}};
}

// The index is a bridge_dtype.
constexpr HotKernels kHotKernels[] = {hot_kernels<math::float16>(), hot_kernels<math::bfloat16>(),
                                      hot_kernels<float>(), hot_kernels<double>()};

// The index is is_double().
constexpr Kernel kAnyKernels[] = {make_kernel<ChunkKernel, AnyOperands<float>>(),
                                  make_kernel<ChunkKernel, AnyOperands<double>>()};

// The kernel compiled for this very kind of call, or NULL.
const Kernel* find_hot(const bridge_bias_dropout_add& call) {
  const int32_t dtype = call.input.full.dtype;
  const Keep keep = keep_of(call);
  auto same = [&](const bridge_array& full) { return !is_present(full) || full.dtype == dtype; };
  if (keep == Keep::none || !same(call.residual) || !same(call.output.full)) return nullptr;
  if (is_double(call) != (dtype == BRIDGE_FLOAT64)) return nullptr;
  const With with = is_present(call.output.row) ? With::sums
                    : is_present(call.residual) ? With::residual
                                                : With::nothing;
  return &kHotKernels[dtype].with[static_cast<int>(with)][keep == Keep::some ? 1 : 0];
}

const char* enqueue(const bridge_bias_dropout_add& call, void* workspace, void* stream) {
  // Batches draw each from its own start.
  const columns::Choice<Params> choice{find_hot(call), &kAnyKernels[is_double(call)],
                                       is_double(call), keep_of(call) != Keep::some,
                                       is_index_dense(call)};
  return columns::enqueue(call, choice, workspace, stream, [&](Params& params) {
    // Where rows were cut anew, positions in them count on as the indices do.
    params.index_row =
        static_cast<uint64_t>(params.row_positions != 0 ? params.row_positions : call.index_cols);
    params.index_step = static_cast<uint64_t>(params.row_step) * params.index_row;
  });
}

constexpr auto kEntry =
    columns::op_entry<bridge_bias_dropout_add, is_double>("bias_dropout_add", validate, enqueue);

}  // namespace

const char* load_kernels() {
  for (const HotKernels& kernels : kHotKernels) {
    if (const char* error = cuda::load_all(kernels.with)) return error;
  }
  const char* error = cuda::load_all(kAnyKernels);
  return error != nullptr ? error : columns::load_tree();
}

}  // namespace bridge::bias_dropout_add

extern "C" BRIDGE_EXPORT size_t
bridge_bias_dropout_add_cuda_workspace(const bridge_bias_dropout_add* call) {
  return bridge::cuda::workspace_bytes(bridge::bias_dropout_add::kEntry, call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_bias_dropout_add_cuda(
    const bridge_bias_dropout_add* call, void* workspace, size_t workspace_bytes, void* stream) {
  return bridge::cuda::run(bridge::bias_dropout_add::kEntry, call, workspace, workspace_bytes,
                           stream);
}
