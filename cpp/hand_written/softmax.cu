// softmax on CUDA: chooses a kernel for the rows of a call and enqueues it.
#include "hand_written/softmax.cuh"

#include "hand_written/row_launch.cuh"
#include "hand_written/softmax_call.h"
#include "hand_written/softmax_cuda.h"
#include "hand_written/softmax_scale.h"

namespace bridge {
namespace softmax {
namespace {

using interpreter::Role;
using interpreter::View;
using math::bfloat16;
using math::float16;

template <class Precision>
struct Kernels {
  template <class Team, bool kIsAligned>
  using OfTeam = RowsKernel<Team, Precision, kIsAligned>;
};

template <class T>
constexpr rows::KernelLists<Params> kernel_lists() {
  // The threads of a cluster have as many registers as those of the largest block.
  return rows::kernel_lists<T, sizeof(T) == 8 ? 16 : 32, sizeof(T) == 8 ? 1 : 4,
                            Kernels<math::precision_of<T>>::template OfTeam>();
}

// The index is a bridge_dtype.
constexpr rows::KernelLists<Params> kKernels[] = {kernel_lists<float16>(), kernel_lists<bfloat16>(),
                                                  kernel_lists<float>(), kernel_lists<double>()};

const rows::KernelLists<Params>& lists_of(const bridge_program& call) {
  return kKernels[call.operand[0].dtype];
}

const bridge_program_array* last_of(const bridge_program& call, const View& view) {
  const int32_t last = call.operands - 1;
  return view.operand_role(last) == Role::label ? &call.operand[last] : nullptr;
}

const bridge_program_array* mask_of(const bridge_program& call, const View& view) {
  return call.operands > 1 && view.operand_role(1) == Role::mask ? &call.operand[1] : nullptr;
}

// Rows too long for the registers of a block have a cluster; longer rows are left to other kernels.
bool takes(const bridge_program& call, const View& view) {
  const bridge_program_array* const mask = mask_of(call, view);
  if (mask != nullptr && mask->col_stride != 0 && mask->col_stride != 1 && call.cols > 1)
    return false;
  return reads_last(last_of(call, view)) && has_adjacent_columns(call, 1) &&
         lists_of(call).take(call.cols);
}

Params make_params(const bridge_program& call, const View& view) {
  const bridge_program_array *const mask = mask_of(call, view), *const last = last_of(call, view);
  RowSpace space = space_of(call);
  Strides strides[kArrays];
  const RowOperand operands[kArrays] = {
      strides[kX].operand(call, &call.operand[0]), strides[kMask].operand(call, mask),
      strides[kOutput].operand(call, &call.result[0]), strides[kLast].operand(call, last)};
  Params params{};
  params.layout = rows::lay_out(space, operands);
  params.x = static_cast<const char*>(call.operand[0].data);
  params.output = static_cast<char*>(call.result[0].data);
  if (mask != nullptr) {
    params.mask = static_cast<const uint8_t*>(mask->data);
    params.mask_for_rows = mask->col_stride == 0;
    if (last == nullptr) rows::join_readers(params.layout, kMask);
  }
  if (last != nullptr)
    params.last = {static_cast<const char*>(last->data),
                   static_cast<int32_t>(element_bytes(last->dtype))};
  set_scale(view, call.operand[0].dtype, &params.scale_single, &params.scale_double);
  return params;
}

// Returns true if every vector of every row is whole and lies at a multiple of its size.
bool is_aligned(const bridge_program& call, const Params& params) {
  const int64_t vector = 16 / element_bytes(call.operand[0].dtype);
  return call.cols % vector == 0 && rows::is_aligned(params.layout, kX, params.x, 16) &&
         rows::is_aligned(params.layout, kOutput, params.output, 16) &&
         (params.mask == nullptr || params.mask_for_rows ||
          rows::is_aligned(params.layout, kMask, params.mask, vector));
}

const char* enqueue(const bridge_program& call, const View& view, void* stream) {
  Params params = make_params(call, view);
  return lists_of(call).enqueue(is_aligned(call, params), params, stream);
}

const char* load() { return rows::load_all(kKernels); }

}  // namespace
}  // namespace softmax

extern const interpreter::HandKernel softmax_kernel;
const interpreter::HandKernel softmax_kernel = {softmax::takes, softmax::enqueue, softmax::load};

}  // namespace bridge
