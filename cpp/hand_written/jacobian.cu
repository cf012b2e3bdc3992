// The Jacobian of softmax on CUDA: chooses a kernel for the rows of a call and enqueues it.
#include "hand_written/jacobian.cuh"

#include "hand_written/row_launch.cuh"
#include "hand_written/softmax_call.h"
#include "hand_written/softmax_cuda.h"

namespace bridge {
namespace jacobian {
namespace {

using interpreter::View;
using math::bfloat16;
using math::float16;

template <class T, class Precision>
struct Kernels {
  template <class Team, bool kIsAligned>
  using OfTeam = JacobianKernel<Team, Precision, kIsAligned>;
  // Two operands take twice the registers that softmax does.
  using Rows = rows::RowKernels<T, 64 / sizeof(T), OfTeam>;
  // As many registers as the threads of the largest block have.
  using Cluster = rows::ClusterTeam<T, sizeof(T) == 8 ? 1 : 8 / sizeof(T)>;
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

bool takes(const bridge_program& call, const View&) {
  const KernelLists& lists = lists_of(call);
  const bridge_program_array* const last = call.operands > 2 ? &call.operand[2] : nullptr;
  return reads_last(last) && has_adjacent_columns(call, 2) &&
         (call.cols <= lists.any.most_cols() || lists.clusters[0].blocks_of(call.cols) > 0);
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
}  // namespace jacobian

extern const interpreter::HandKernel jacobian_kernel;
const interpreter::HandKernel jacobian_kernel = {jacobian::takes, jacobian::enqueue,
                                                 jacobian::load};

}  // namespace bridge
