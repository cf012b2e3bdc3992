// The Jacobian of softmax on CUDA: chooses a kernel for the rows of a call and enqueues it.
#include "hand_written/jacobian.cuh"

#include "hand_written/row_launch.cuh"
#include "hand_written/softmax_call.h"
#include "hand_written/softmax_cuda.h"
#include "hand_written/softmax_scale.h"

namespace bridge {
namespace jacobian {
namespace {

using interpreter::View;
using math::bfloat16;
using math::float16;

template <class Precision>
struct Kernels {
  template <class Team, bool kIsAligned>
  using OfTeam = JacobianKernel<Team, Precision, kIsAligned>;
};

template <class T>
constexpr rows::KernelLists<Params> kernel_lists() {
  // Two operands take twice the registers that softmax does.
  // The threads of a cluster have as many registers as those of the largest block.
  return rows::kernel_lists<T, 64 / sizeof(T), sizeof(T) == 8 ? 1 : 8 / sizeof(T),
                            Kernels<math::precision_of<T>>::template OfTeam>();
}

// The index is a bridge_dtype.
constexpr rows::KernelLists<Params> kKernels[] = {kernel_lists<float16>(), kernel_lists<bfloat16>(),
                                                  kernel_lists<float>(), kernel_lists<double>()};

const rows::KernelLists<Params>& lists_of(const bridge_program& call) {
  return kKernels[call.operand[0].dtype];
}

bool takes(const bridge_program& call, const View&) {
  const bridge_program_array* const last = call.operands > 2 ? &call.operand[2] : nullptr;
  return reads_last(last) && has_adjacent_columns(call, 2) && lists_of(call).take(call.cols);
}

Params make_params(const bridge_program& call, const View& view) {
  const bridge_program_array* const last = call.operands > 2 ? &call.operand[2] : nullptr;
  RowSpace space = space_of(call);
  Strides strides[kArrays];
  const RowOperand operands[kArrays] = {
      strides[kU].operand(call, &call.operand[0]), strides[kV].operand(call, &call.operand[1]),
      strides[kOutput].operand(call, &call.result[0]), strides[kLast].operand(call, last)};
  Params params{};
  params.layout = rows::lay_out(space, operands);
  params.data[kU] = static_cast<char*>(call.operand[0].data);
  params.data[kV] = static_cast<char*>(call.operand[1].data);
  params.data[kOutput] = static_cast<char*>(call.result[0].data);
  if (last != nullptr)
    params.last = {static_cast<const char*>(last->data),
                   static_cast<int32_t>(element_bytes(last->dtype))};
  params.scale_single = math::softmax_derivative_scale<float>(parameter(view, 0));
  params.scale_double = parameter(view, 0);
  return params;
}

// Returns true if every vector of every row is whole and lies at a multiple of 16 bytes.
bool is_aligned(const bridge_program& call, const Params& params) {
  bool aligned = call.cols % (16 / element_bytes(call.operand[0].dtype)) == 0;
  for (int a = 0; a < kLast; ++a)
    aligned = aligned && rows::is_aligned(params.layout, a, params.data[a], 16);
  return aligned;
}

const char* enqueue(const bridge_program& call, const View& view, void* stream) {
  Params params = make_params(call, view);
  return lists_of(call).enqueue(is_aligned(call, params), params, stream);
}

const char* load() { return rows::load_all(kKernels); }

}  // namespace
}  // namespace jacobian

extern const interpreter::HandKernel jacobian_kernel;
const interpreter::HandKernel jacobian_kernel = {jacobian::takes, jacobian::enqueue,
                                                 jacobian::load};

}  // namespace bridge
