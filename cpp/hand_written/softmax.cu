// softmax on CUDA: chooses a kernel for the rows of a call and enqueues it.
#include "hand_written/softmax.cuh"

#include "hand_written/row_launch.cuh"
#include "hand_written/softmax_call.h"
#include "hand_written/softmax_cuda.h"

namespace bridge {
namespace softmax {
namespace {

using interpreter::Role;
using interpreter::View;
using math::bfloat16;
using math::float16;

template <class T, class Precision>
struct Kernels {
  template <class Team, bool kIsAligned>
  using OfTeam = RowsKernel<Team, Precision, kIsAligned>;
  using Rows = rows::RowKernels<T, sizeof(T) == 8 ? 16 : 32, OfTeam>;
  // As many registers as the threads of the largest block have.
  using Cluster = rows::ClusterTeam<T, sizeof(T) == 8 ? 1 : 4>;
  static constexpr rows::ClusterKernel<Params> kClusters[2] = {
      rows::cluster_kernel<OfTeam<Cluster, false>>(),
      rows::cluster_kernel<OfTeam<Cluster, true>>()};
};

struct KernelLists {
  rows::KernelList<Params> aligned;
  rows::KernelList<Params> any;
  const rows::ClusterKernel<Params> (&clusters)[2];  // the index is whether all is aligned
};

template <class T>
constexpr KernelLists kernel_lists() {
  using K = Kernels<T, math::precision_of<T>>;
  return {K::Rows::kAligned, K::Rows::kAny, K::kClusters};
}

// The index is a bridge_dtype.
constexpr KernelLists kKernels[] = {kernel_lists<float16>(), kernel_lists<bfloat16>(),
                                    kernel_lists<float>(), kernel_lists<double>()};

const KernelLists& lists_of(const bridge_program& call) { return kKernels[call.operand[0].dtype]; }

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
  const KernelLists& lists = lists_of(call);
  return reads_last(last_of(call, view)) && has_adjacent_columns(call, 1) &&
         (call.cols <= lists.any.most_cols() || lists.clusters[0].blocks_of(call.cols) > 0);
}

template <class Precision, class Real = typename Precision::real>
math::SoftmaxScale<Real> scale_of(const View& view) {
  auto scale = math::softmax_scale<Precision>(0.0);
  scale.half = static_cast<Real>(parameter(view, 0));
  scale.rate = static_cast<Real>(parameter(view, 1));
  if constexpr (!math::is_for_16_bits<Precision>) {
    scale.rate_low = static_cast<Real>(parameter(view, 2));
    scale.floor = static_cast<Real>(parameter(view, 3));
  }
  return scale;
}

void set_scale(int32_t dtype, const View& view, Params* params) {
  switch (dtype) {
    case BRIDGE_FLOAT16:
      params->scale_single = scale_of<math::SingleForFloat16>(view);
      break;
    case BRIDGE_BFLOAT16:
      params->scale_single = scale_of<math::SingleForBfloat16>(view);
      break;
    case BRIDGE_FLOAT32:
      params->scale_single = scale_of<math::Single>(view);
      break;
    default:
      params->scale_double = scale_of<math::Double>(view);
  }
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
  set_scale(call.operand[0].dtype, view, &params);
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
  const KernelLists& lists = lists_of(call);
  const bool aligned = is_aligned(call, params);
  if (call.cols <= lists.any.most_cols())
    return (aligned ? lists.aligned : lists.any).enqueue(params, stream);
  const auto& cluster = lists.clusters[aligned ? 1 : 0];
  return cluster.enqueue(cluster.blocks_of(call.cols), params, stream);
}

const char* load() {
  for (const KernelLists& lists : kKernels) {
    const char* error = rows::load_all(lists.aligned, lists.any, lists.clusters);
    if (error != nullptr) return error;
  }
  return nullptr;
}

}  // namespace
}  // namespace softmax

extern const interpreter::HandKernel softmax_kernel;
const interpreter::HandKernel softmax_kernel = {softmax::takes, softmax::enqueue, softmax::load};

}  // namespace bridge
