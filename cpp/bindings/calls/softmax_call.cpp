// Bindings of softmax and softmax_derivative.
#include "bindings/calls/row_binding.h"

namespace bridge::bindings {
namespace {

// Sets the addresses of a call's arrays, in the order in which they are bound.
void place_softmax(bridge_softmax* call, char* const* data) {
  call->x.data = data[0];
  call->mask.data = reinterpret_cast<const uint8_t*>(data[1]);
  call->output.data = data[2];
}

void place_derivative(bridge_softmax_derivative* call, char* const* data) {
  call->u.data = data[0];
  call->v.data = data[1];
  call->w.data = data[2];
  call->output.data = data[3];
}

bool read_attributes(const Arguments& call, double* scale, int32_t* causal, CallError* error) {
  return read_finite("scale", call.attributes[0], scale, error) &&
         read_whole("causal", call.attributes[1], 0, 1, causal, error);
}

template <class Bound>
int64_t elements_of(const Bound& bound) {
  int64_t elements = bound.call.space.cols;
  for (int32_t i = 0; i < bound.call.space.dims; ++i) elements *= bound.call.space.size[i];
  for (int32_t i = 0; i < bound.loops.dims; ++i) elements *= bound.loops.size[i];
  return elements;
}

template <class C>
void write_rows(const RowBinding& binding, size_t array, C* rows) {
  rows->data = binding.data(array);
  binding.write_strides(array, rows->stride);
}

// The op softmax. Operands: x, mask; result: y; attributes: scale, causal.
struct Softmax {
  using Bound = LoopedCall<bridge_softmax, place_softmax>;
  using CudaWorkspace = decltype(&::bridge_softmax_cuda_workspace);
  using CudaRun = decltype(&::bridge_softmax_cuda);
  static constexpr OpCounts kCounts{"softmax", 1, 2, 1, 2};

  static bool bind(const Arguments& arguments, Bound* out, CallError* error) {
    bridge_softmax& call = out->call;
    const RowArray arrays[] = {{RowArray::operand, "x", arguments.operand(0)},
                               {RowArray::mask, "mask", arguments.operand(1)},
                               {RowArray::output, "y", arguments.results[0]}};
    RowBinding binding;
    int32_t causal = 0;
    if (!read_attributes(arguments, &call.scale, &causal, error) ||
        !binding.bind(arrays, 3, causal != 0, arguments.results_are_fresh, error)) {
      return false;
    }
    binding.write(&call.space, &out->loops);
    call.dtype = binding.dtype();
    write_rows(binding, 0, &call.x);
    call.mask.data = reinterpret_cast<const uint8_t*>(binding.data(1));
    call.mask.col_stride = binding.col_stride(1);
    binding.write_strides(1, call.mask.stride);
    write_rows(binding, 2, &call.output);
    return true;
  }

  static int64_t elements(const Bound& bound) { return elements_of(bound); }

  static bridge_status run_on_cpu(const bridge_softmax* call, const bridge_executor* executor) {
    return bridge_softmax_cpu(call, executor);
  }
};

// The op softmax_derivative. Operands: u, v, w; result: full; attributes: scale, causal, terms.
struct SoftmaxDerivative {
  using Bound = LoopedCall<bridge_softmax_derivative, place_derivative>;
  using CudaWorkspace = decltype(&::bridge_softmax_derivative_cuda_workspace);
  using CudaRun = decltype(&::bridge_softmax_derivative_cuda);
  static constexpr OpCounts kCounts{"softmax_derivative", 2, 3, 1, 3};
  static constexpr int32_t kJacobian = BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U;
  static constexpr int32_t kAllTerms = kJacobian | BRIDGE_SOFTMAX_V | BRIDGE_SOFTMAX_W;

  static bool bind(const Arguments& arguments, Bound* out, CallError* error) {
    bridge_softmax_derivative& call = out->call;
    const RowArray arrays[] = {{RowArray::operand, "u", arguments.operand(0)},
                               {RowArray::operand, "v", arguments.operand(1)},
                               {RowArray::operand, "w", arguments.operand(2)},
                               {RowArray::output, "the output", arguments.results[0]}};
    RowBinding binding;
    int32_t causal = 0;
    if (!read_attributes(arguments, &call.scale, &causal, error) ||
        !read_whole("terms", arguments.attributes[2], 1, kAllTerms, &call.terms, error)) {
      return false;
    }
    if (!arguments.operand(1).present) return error->set("v is missing");
    if (!arguments.operand(2).present && call.terms != kJacobian) {
      return error->set("terms is " + std::to_string(call.terms) + ", expected " +
                        std::to_string(kJacobian) + " where w is absent");
    }
    if (!binding.bind(arrays, 4, causal != 0, arguments.results_are_fresh, error)) return false;
    binding.write(&call.space, &out->loops);
    call.dtype = binding.dtype();
    write_rows(binding, 0, &call.u);
    write_rows(binding, 1, &call.v);
    write_rows(binding, 2, &call.w);
    write_rows(binding, 3, &call.output);
    return true;
  }

  static int64_t elements(const Bound& bound) { return elements_of(bound); }

  static bridge_status run_on_cpu(const bridge_softmax_derivative* call,
                                  const bridge_executor* executor) {
    return bridge_softmax_derivative_cpu(call, executor);
  }
};

}  // namespace

extern const Op kSoftmax, kSoftmaxDerivative;
const Op kSoftmax = make_op<Softmax>();
const Op kSoftmaxDerivative = make_op<SoftmaxDerivative>();

}  // namespace bridge::bindings
