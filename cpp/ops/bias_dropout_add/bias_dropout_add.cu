// bias_dropout_add on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include <bridge/bridge.h>

#include "cuda/last_error.h"
#include "ops/bias_dropout_add/bias_dropout_add_cuda.h"
#include "ops/bias_dropout_add/bias_dropout_add_operands.cuh"
#include "walks/columns/column_plan.h"

namespace bridge::bias_dropout_add {
namespace {

using Kernel = columns::Kernel<Params>;

using columns::ChunkKernel;
using columns::ElementwiseKernel;
using columns::make_kernel;

// The hot calls of one dtype: forward pass with and without a residual, backward pass with column
// sums, drawing or not.
struct HotKernels {
  Kernel plain[2];
  Kernel residual[2];
  Kernel sums[2];
};

template <template <class> class K, class T, With kWith>
constexpr Kernel make_hot(bool draws) {
  return draws ? make_kernel<K, HotOperands<T, Keep::some, kWith>>()
               : make_kernel<K, HotOperands<T, Keep::all, kWith>>();
}

template <class T>
constexpr HotKernels hot_kernels() {
  return {
      {make_hot<ElementwiseKernel, T, With::nothing>(false),
       make_hot<ElementwiseKernel, T, With::nothing>(true)},
      {make_hot<ElementwiseKernel, T, With::residual>(false),
       make_hot<ElementwiseKernel, T, With::residual>(true)},
      {make_hot<ChunkKernel, T, With::sums>(false), make_hot<ChunkKernel, T, With::sums>(true)}};
}

// By bridge_dtype.
constexpr HotKernels kHotKernels[] = {hot_kernels<math::float16>(), hot_kernels<math::bfloat16>(),
                                      hot_kernels<float>(), hot_kernels<double>()};

// By is_double().
constexpr Kernel kAnyKernels[] = {make_kernel<ChunkKernel, AnyOperands<float>>(),
                                  make_kernel<ChunkKernel, AnyOperands<double>>()};

size_t workspace_bytes_of(const bridge_bias_dropout_add& call) {
  return is_present(call.output.row)
             ? columns::workspace_bytes(check::sizes_of(call), is_double(call))
             : 0;
}

// The kernel compiled for this very kind of call, or NULL.
const Kernel* find_hot(const bridge_bias_dropout_add& call) {
  const int32_t dtype = call.input.full.dtype;
  const Keep keep = keep_of(call);
  auto same = [&](const bridge_array& full) { return !is_present(full) || full.dtype == dtype; };
  if (keep == Keep::none || !same(call.residual) || !same(call.output.full)) return nullptr;
  if (is_double(call) != (dtype == BRIDGE_FLOAT64)) return nullptr;
  const HotKernels& kernels = kHotKernels[dtype];
  const int draws = keep == Keep::some ? 1 : 0;
  return is_present(call.output.row) ? &kernels.sums[draws]
         : is_present(call.residual) ? &kernels.residual[draws]
                                     : &kernels.plain[draws];
}

const char* enqueue(const bridge_bias_dropout_add& call, void* workspace, void* stream) {
  const bool sums = is_present(call.output.row);
  auto add_chunks = [&] {
    return columns::enqueue_tree(check::sizes_of(call), is_double(call), call.output.row, workspace,
                                 stream);
  };
  if (call.rows == 0) return sums ? add_chunks() : nullptr;
  Params params{};
  simt::Grid grid;
  const Kernel* kernel = find_hot(call);
  if (kernel != nullptr) {
    params.call = call;
    // Batches draw each from its own start.
    grid = sums ? columns::plan_chunks(params, kernel->vector)
                : columns::plan_elementwise(params, kernel->vector, keep_of(call) != Keep::some,
                                            is_index_dense(call));
    if (params.whole == 0) kernel = nullptr;
  }
  if (kernel == nullptr) {
    kernel = &kAnyKernels[is_double(call)];
    params = {};
    params.call = call;
    grid = columns::plan_chunks(params, kernel->vector);
  }
  // Where rows were cut anew, positions in them count on as the indices do.
  params.index_row =
      static_cast<uint64_t>(params.row_positions != 0 ? params.row_positions : call.index_cols);
  params.index_step = static_cast<uint64_t>(params.row_step) * params.index_row;
  const bool tree = sums && params.chunks > 1;
  params.partials = tree ? workspace : nullptr;
  if (const char* error = kernel->launch(grid, 0, stream, params)) return error;
  return tree ? add_chunks() : nullptr;
}

}  // namespace

const char* load_kernels() {
  auto load = [](const Kernel(&pair)[2]) {
    const char* error = pair[0].load();
    return error != nullptr ? error : pair[1].load();
  };
  for (const HotKernels& kernels : kHotKernels) {
    if (const char* error = load(kernels.plain)) return error;
    if (const char* error = load(kernels.residual)) return error;
    if (const char* error = load(kernels.sums)) return error;
  }
  if (const char* error = load(kAnyKernels)) return error;
  return columns::load_tree();
}

}  // namespace bridge::bias_dropout_add

extern "C" BRIDGE_EXPORT size_t
bridge_bias_dropout_add_cuda_workspace(const bridge_bias_dropout_add* call) {
  char message[bridge::cuda::kMessageBytes];
  if (call == nullptr || bridge::validate(*call, message, sizeof message) != BRIDGE_OK) return 0;
  return bridge::bias_dropout_add::workspace_bytes_of(*call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_bias_dropout_add_cuda(
    const bridge_bias_dropout_add* call, void* workspace, size_t workspace_bytes, void* stream) {
  using namespace bridge;
  constexpr const char* kName = "bias_dropout_add";
  if (call == nullptr) return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, "call is NULL");
  const bridge_status status = validate(*call, cuda::error_message(), cuda::kMessageBytes);
  if (status != BRIDGE_OK) return status;
  if (call->batch == 0 || call->cols == 0) return BRIDGE_OK;
  const size_t needed = bias_dropout_add::workspace_bytes_of(*call);
  if (!cuda::is_enough(kName, workspace, workspace_bytes, needed)) return BRIDGE_INVALID_ARGUMENT;
  const bridge_array& output = is_present(call->output.full) ? call->output.full : call->output.row;
  int entered = -1;
  const char* error = simt::make_current(stream, output.data, &entered);
  if (error == nullptr) error = bias_dropout_add::enqueue(*call, workspace, stream);
  simt::restore_current(entered);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}
