// bias_gelu on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include <bridge/bridge.h>

#include "cuda/last_error.h"
#include "ops/bias_gelu/bias_gelu_cuda.h"
#include "ops/bias_gelu/bias_gelu_operands.cuh"
#include "walks/columns/column_plan.h"

namespace bridge::bias_gelu {
namespace {

using Kernel = columns::Kernel<Params>;

using columns::ChunkKernel;
using columns::ElementwiseKernel;
using columns::make_kernel;

// The hot calls of one dtype and form: the forward pass, its derivatives of first and second order.
struct Hot {
  int order;
  int factors;
  bool sums;
};
constexpr Hot kHot[] = {{0, 0, false}, {1, 1, false}, {1, 1, true}, {2, 2, false}, {2, 2, true}};
constexpr int kHotCount = sizeof kHot / sizeof kHot[0];
constexpr int kForms = 3;
constexpr int kDtypes = 4;

struct HotKernels {
  Kernel kernel[kHotCount];
};

template <class T, class Precision, math::GeluForm kForm>
constexpr HotKernels hot_kernels() {
  return {{make_kernel<ElementwiseKernel, HotOperands<T, Precision, kForm, 0, 0>>(),
           make_kernel<ElementwiseKernel, HotOperands<T, Precision, kForm, 1, 1>>(),
           make_kernel<ChunkKernel, HotOperands<T, Precision, kForm, 1, 1>>(),
           make_kernel<ElementwiseKernel, HotOperands<T, Precision, kForm, 2, 2>>(),
           make_kernel<ChunkKernel, HotOperands<T, Precision, kForm, 2, 2>>()}};
}

template <class T, class Precision>
struct HotForms {
  static constexpr HotKernels kForm[kForms] = {
      hot_kernels<T, Precision, math::GeluForm::tanh>(),
      hot_kernels<T, Precision, math::GeluForm::erf>(),
      hot_kernels<T, Precision, math::GeluForm::sigmoid>()};
};

// By bridge_dtype and bridge_gelu_form.
constexpr const HotKernels* kHotKernels[kDtypes] = {
    HotForms<math::float16, math::SingleFor16Bits>::kForm,
    HotForms<math::bfloat16, math::SingleFor16Bits>::kForm, HotForms<float, math::Single>::kForm,
    HotForms<double, math::Double>::kForm};

// By Arithmetic.
constexpr Kernel kAnyKernels[] = {make_kernel<ChunkKernel, AnyOperands<math::SingleFor16Bits>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::Single>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::Double>>()};

bool is_double(const bridge_bias_gelu& call) { return arithmetic_of(call) == Arithmetic::double_; }

size_t workspace_bytes_of(const bridge_bias_gelu& call) {
  return is_present(call.output.row)
             ? columns::workspace_bytes(check::sizes_of(call), is_double(call))
             : 0;
}

// The kernel compiled for this very kind of call, or NULL.
const Kernel* find_hot(const bridge_bias_gelu& call) {
  const int32_t dtype = call.input.full.dtype;
  const Arithmetic native = is_16_bit(dtype)          ? Arithmetic::single_for_16_bits
                            : dtype == BRIDGE_FLOAT32 ? Arithmetic::single
                                                      : Arithmetic::double_;
  bool typed = arithmetic_of(call) == native;
  typed &= !is_present(call.output.full) || call.output.full.dtype == dtype;
  for (int i = 0; i < call.factors; ++i) {
    typed &= is_present(call.factor[i].full) && !is_present(call.factor[i].row) &&
             call.factor[i].full.dtype == dtype;
  }
  if (!typed) return nullptr;
  for (int i = 0; i < kHotCount; ++i) {
    if (kHot[i].order == call.order && kHot[i].factors == call.factors &&
        kHot[i].sums == is_present(call.output.row)) {
      return &kHotKernels[dtype][call.form].kernel[i];
    }
  }
  return nullptr;
}

const char* enqueue(const bridge_bias_gelu& call, void* workspace, void* stream) {
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
    grid = sums ? columns::plan_chunks(params, kernel->vector)
                : columns::plan_elementwise(params, kernel->vector, true, true);
    if (params.whole == 0) kernel = nullptr;
  }
  if (kernel == nullptr) {
    kernel = &kAnyKernels[static_cast<int>(arithmetic_of(call))];
    params = {};
    params.call = call;
    grid = columns::plan_chunks(params, kernel->vector);
  }
  const bool tree = sums && params.chunks > 1;
  params.partials = tree ? workspace : nullptr;
  if (const char* error = kernel->launch(grid, 0, stream, params)) return error;
  return tree ? add_chunks() : nullptr;
}

}  // namespace

const char* load_kernels() {
  for (const HotKernels* forms : kHotKernels) {
    for (int form = 0; form < kForms; ++form) {
      for (const Kernel& kernel : forms[form].kernel) {
        if (const char* error = kernel.load()) return error;
      }
    }
  }
  for (const Kernel& kernel : kAnyKernels) {
    if (const char* error = kernel.load()) return error;
  }
  return columns::load_tree();
}

}  // namespace bridge::bias_gelu

extern "C" BRIDGE_EXPORT size_t bridge_bias_gelu_cuda_workspace(const bridge_bias_gelu* call) {
  char message[bridge::cuda::kMessageBytes];
  if (call == nullptr || bridge::validate(*call, message, sizeof message) != BRIDGE_OK) return 0;
  return bridge::bias_gelu::workspace_bytes_of(*call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_bias_gelu_cuda(const bridge_bias_gelu* call,
                                                             void* workspace,
                                                             size_t workspace_bytes, void* stream) {
  using namespace bridge;
  constexpr const char* kName = "bias_gelu";
  if (call == nullptr) return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, "call is NULL");
  const bridge_status status = validate(*call, cuda::error_message(), cuda::kMessageBytes);
  if (status != BRIDGE_OK) return status;
  if (call->batch == 0 || call->cols == 0) return BRIDGE_OK;
  const size_t needed = bias_gelu::workspace_bytes_of(*call);
  if (!cuda::is_enough(kName, workspace, workspace_bytes, needed)) return BRIDGE_INVALID_ARGUMENT;
  const bridge_array& output = is_present(call->output.full) ? call->output.full : call->output.row;
  int entered = -1;
  const char* error = simt::make_current(stream, output.data, &entered);
  if (error == nullptr) error = bias_gelu::enqueue(*call, workspace, stream);
  simt::restore_current(entered);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}
