// bias_gelu on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include <bridge/bridge.h>

#include "cuda/op_entry.h"
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

struct HotForms {
  HotKernels form[kForms];
};

template <class T, class Precision = math::precision_of<T>>
constexpr HotForms hot_forms() {
  return {{hot_kernels<T, Precision, math::GeluForm::tanh>(),
           hot_kernels<T, Precision, math::GeluForm::erf>(),
           hot_kernels<T, Precision, math::GeluForm::sigmoid>()}};
}

// The index is a bridge_dtype, that of its forms a bridge_gelu_form.
constexpr HotForms kHotKernels[] = {hot_forms<math::float16>(), hot_forms<math::bfloat16>(),
                                    hot_forms<float>(), hot_forms<double>()};

// The index is an Arithmetic.
constexpr Kernel kAnyKernels[] = {make_kernel<ChunkKernel, AnyOperands<math::SingleForFloat16>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::SingleForBfloat16>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::Single>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::Double>>()};

// The kernel compiled for this very kind of call, or NULL.
const Kernel* find_hot(const bridge_bias_gelu& call) {
  const int32_t dtype = call.input.full.dtype;
  bool typed = arithmetic_of(call) == native_arithmetic(dtype);
  typed &= !is_present(call.output.full) || call.output.full.dtype == dtype;
  for (int i = 0; i < call.factors; ++i) {
    typed &= is_present(call.factor[i].full) && !is_present(call.factor[i].row) &&
             call.factor[i].full.dtype == dtype;
  }
  if (!typed) return nullptr;
  for (int i = 0; i < kHotCount; ++i) {
    if (kHot[i].order == call.order && kHot[i].factors == call.factors &&
        kHot[i].sums == is_present(call.output.row)) {
      return &kHotKernels[dtype].form[call.form].kernel[i];
    }
  }
  return nullptr;
}

const char* enqueue(const bridge_bias_gelu& call, void* workspace, void* stream) {
  const columns::Choice<Params> choice{find_hot(call),
                                       &kAnyKernels[static_cast<int>(arithmetic_of(call))],
                                       is_double(call), true, true};
  return columns::enqueue(call, choice, workspace, stream, [](Params&) {});
}

constexpr auto kEntry =
    columns::op_entry<bridge_bias_gelu, is_double>("bias_gelu", validate, enqueue);

}  // namespace

const char* load_kernels() {
  for (const HotForms& forms : kHotKernels) {
    for (const HotKernels& kernels : forms.form) {
      if (const char* error = cuda::load_all(kernels.kernel)) return error;
    }
  }
  const char* error = cuda::load_all(kAnyKernels);
  return error != nullptr ? error : columns::load_tree();
}

}  // namespace bridge::bias_gelu

extern "C" BRIDGE_EXPORT size_t bridge_bias_gelu_cuda_workspace(const bridge_bias_gelu* call) {
  return bridge::cuda::workspace_bytes(bridge::bias_gelu::kEntry, call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_bias_gelu_cuda(const bridge_bias_gelu* call,
                                                             void* workspace,
                                                             size_t workspace_bytes, void* stream) {
  return bridge::cuda::run(bridge::bias_gelu::kEntry, call, workspace, workspace_bytes, stream);
}
