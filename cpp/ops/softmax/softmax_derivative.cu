// softmax_derivative on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include "ops/softmax/softmax_derivative.cuh"

#include <bridge/bridge.h>

#include "cuda/op_entry.h"
#include "drivers/rows/row_launch.cuh"
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_cuda.h"

namespace bridge::softmax_derivative {
namespace {

using math::bfloat16;
using math::float16;
using rows::ceil_divide;
using rows::real_bytes;

using Kernel = rows::Kernel<Params>;

template <class T, class Precision>
struct Kernels {
  template <class Team, bool kIsAligned>
  using OfTeam = JacobianKernel<Team, Precision, kIsAligned>;
  // The two operands of the Jacobian take twice the registers that softmax does.
  using Rows = rows::RowKernels<T, 64 / sizeof(T), OfTeam>;
  static constexpr rows::RowKernel<Params> kGeneral[1] = {
      rows::row_kernel<GeneralKernel<rows::GroupTeam<T, 32, 32 / Rows::kVector>, Precision>>()};
  // As many registers as the threads of the largest block have.
  using Cluster = rows::ClusterTeam<T, sizeof(T) == 8 ? 1 : 8 / sizeof(T)>;
  static constexpr rows::ClusterKernel<Params> kClusters[2] = {
      rows::cluster_kernel<OfTeam<Cluster, false>>(),
      rows::cluster_kernel<OfTeam<Cluster, true>>()};
  // The first index is kJacobian, the second a Step.
  static constexpr Kernel kSegments[2][2] = {
      {rows::make_kernel<SegmentKernel<T, Precision, Step::dots, false>>(),
       rows::make_kernel<SegmentKernel<T, Precision, Step::store, false>>()},
      {rows::make_kernel<SegmentKernel<T, Precision, Step::dots, true>>(),
       rows::make_kernel<SegmentKernel<T, Precision, Step::store, true>>()}};
};

struct KernelLists {
  rows::KernelList<Params> aligned;
  rows::KernelList<Params> any;
  rows::KernelList<Params> general;
  const rows::ClusterKernel<Params> (&clusters)[2];  // the index is whether all is aligned
  const Kernel (&segments)[2][2];
};

template <class T>
constexpr KernelLists kernel_lists() {
  using K = Kernels<T, math::precision_of<T>>;
  return {K::Rows::kAligned, K::Rows::kAny, K::kGeneral, K::kClusters, K::kSegments};
}

// The index is a bridge_dtype.
constexpr KernelLists kKernels[] = {kernel_lists<float16>(), kernel_lists<bfloat16>(),
                                    kernel_lists<float>(), kernel_lists<double>()};

bool is_jacobian(const bridge_softmax_derivative& call) { return call.w.data == nullptr; }

// For the registers of a block, or of a warp in the general form.
bool is_too_long(const bridge_softmax_derivative& call) {
  const KernelLists& lists = kKernels[call.dtype];
  return call.space.cols > (is_jacobian(call) ? lists.any : lists.general).most_cols();
}

int64_t rows_at_once(const bridge_softmax_derivative& call) {
  const int64_t operands = is_jacobian(call) ? 2 : 3;
  return rows::rows_at_once(row_count(call.space),
                            operands * call.space.cols * element_bytes(call.dtype));
}

// What the nodes of one dot of one launch take.
size_t dot_bytes(const bridge_softmax_derivative& call) {
  return rows::node_bytes(rows_at_once(call), ceil_divide(call.space.cols, rows::kSegmentCols),
                          real_bytes(call));
}

size_t workspace_bytes_of(const bridge_softmax_derivative& call) {
  if (!is_too_long(call)) return 0;
  return (is_jacobian(call) ? 1 : kDots) * dot_bytes(call);
}

Params make_params(const bridge_softmax_derivative& call) {
  bridge_softmax_derivative copy = call;
  const int64_t cols = call.space.cols, bytes = element_bytes(call.dtype);
  const RowOperand operands[kArrays] = {
      {"u", copy.u.data, copy.u.stride, cols, bytes},
      {"v", copy.v.data, copy.v.stride, cols, bytes},
      {"w", copy.w.data, copy.w.stride, cols, bytes},
      {"output", copy.output.data, copy.output.stride, cols, bytes}};
  Params params{};
  params.layout = rows::lay_out(copy.space, operands);
  for (int a = 0; a < kArrays; ++a) params.data[a] = static_cast<char*>(operands[a].data);
  params.terms = call.terms;
  params.scale_single = math::softmax_derivative_scale<float>(call.scale);
  params.scale_double = math::softmax_derivative_scale<double>(call.scale);
  return params;
}

// Whether every vector of every row is whole and lies at a multiple of 16 bytes.
bool is_aligned(const bridge_softmax_derivative& call, const Params& params) {
  bool aligned = call.space.cols % (16 / element_bytes(call.dtype)) == 0;
  for (int a = 0; a < kArrays; ++a) {
    aligned = aligned && rows::is_aligned(params.layout, a, params.data[a], 16);
  }
  return aligned;
}

template <class Real>
const char* enqueue_segments(const bridge_softmax_derivative& call, Params& params, char* workspace,
                             void* stream) {
  const Kernel* kernels = kKernels[call.dtype].segments[is_jacobian(call) ? 1 : 0];
  return rows::for_each_batch(params, rows_at_once(call), [&](simt::Grid grid) -> const char* {
    const int64_t rows = params.rows, segments = params.segments;
    auto wanted = [&](int d) {
      return is_jacobian(call) ? d == kUV : asks_for(call.terms, static_cast<Dot>(d));
    };
    char* memory = workspace;
    for (int d = 0; d < kDots; ++d) {
      if (!wanted(d)) continue;
      params.dots[d] = rows::nodes_at(memory, rows, segments, sizeof(Real));
      memory += dot_bytes(call);
    }
    const char* error = kernels[static_cast<int>(Step::dots)].launch(grid, 0, stream, params);
    for (int d = 0; d < kDots && !error; ++d) {
      if (wanted(d))
        error = rows::enqueue_levels<Sum, Real>(params.dots[d], rows, segments, stream);
    }
    return error ? error : kernels[static_cast<int>(Step::store)].launch(grid, 0, stream, params);
  });
}

const char* enqueue(const bridge_softmax_derivative& call, void* workspace, void* stream) {
  Params params = make_params(call);
  const KernelLists& lists = kKernels[call.dtype];
  const bool aligned = is_aligned(call, params);
  if (!is_too_long(call)) {
    const rows::KernelList<Params>& list = !is_jacobian(call) ? lists.general
                                           : aligned          ? lists.aligned
                                                              : lists.any;
    return list.enqueue(params, stream);
  }
  const auto& cluster = lists.clusters[aligned ? 1 : 0];
  const int blocks = is_jacobian(call) ? cluster.blocks_of(call.space.cols) : 0;
  if (blocks > 0) return cluster.enqueue(blocks, params, stream);
  char* memory = static_cast<char*>(workspace);
  return call.dtype == BRIDGE_FLOAT64 ? enqueue_segments<double>(call, params, memory, stream)
                                      : enqueue_segments<float>(call, params, memory, stream);
}

constexpr auto kEntry = rows::op_entry<bridge_softmax_derivative>("softmax_derivative", validate,
                                                                  workspace_bytes_of, enqueue);

}  // namespace

const char* load_kernels() {
  for (const KernelLists& lists : kKernels) {
    const char* error =
        cuda::load_all(lists.aligned, lists.any, lists.general, lists.clusters, lists.segments);
    if (error != nullptr) return error;
  }
  return rows::load_levels<Sum>();
}

}  // namespace bridge::softmax_derivative

extern "C" BRIDGE_EXPORT size_t
bridge_softmax_derivative_cuda_workspace(const bridge_softmax_derivative* call) {
  return bridge::cuda::workspace_bytes(bridge::softmax_derivative::kEntry, call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_softmax_derivative_cuda(
    const bridge_softmax_derivative* call, void* workspace, size_t workspace_bytes, void* stream) {
  return bridge::cuda::run(bridge::softmax_derivative::kEntry, call, workspace, workspace_bytes,
                           stream);
}
